"""Delimited files (corpora, questions, pairs, judgements): the fields of every row, by one rule of quoting
for all commands.

A tab separates fields, or a comma or semicolon if the header or the name of the file says so, or the sign
that a first line such as ``sep=;`` names. The first megabyte determines, for the whole file, whether quotes
are those of a csv file or text. In a csv file they must be right, or the row is refused; a quoted field may
span lines. In any other file a newline ends a row, and quotes are text.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path

from dpr.core.errors import InputError
from dpr.formats.record_fields import ALL_NAMES, normal_name
from dpr.formats.text_input import MAX_LINE_BYTES, iter_lines

_COLUMN_NAME = re.compile(r"\w[\w-]*( \w[\w-]*)?")
_SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons"}
_STATED = re.compile(r'"?sep=([,;])"?\s*')
"""A first line that tells Excel the separator of fields."""
_HEAD_CHARACTERS = 2**20
_ENCLOSED = re.compile(r'(?<![^\t])"((?:[^"]|"")*)"(?![^\t])')  # a whole field between tabs


def are_names(row: Sequence[str]) -> bool:
    """True if a row may be a header: each field is one word or two, or empty as above a column of row
    numbers."""
    return any(row) and all(not field or _COLUMN_NAME.fullmatch(field.strip()) for field in row)


def named_columns(
    row: Sequence[str],
    needed: Mapping[str, tuple[str, ...]],
    optional: Mapping[str, tuple[str, ...]],
    file: Path,
) -> dict[str, int] | None:
    """Returns the columns that a header names, by role, in any order; None if the row is no header, or lacks
    a known name that is needed.

    Raises:
        InputError: the header has the name of a role twice.
    """
    if not are_names(row):
        return None
    names = [normal_name(field) for field in row]
    roles = {**needed, **optional}
    columns: dict[str, int] = {}
    for role, known in roles.items():
        name = next(
            (name for name in known if name in names and names.index(name) not in columns.values()), None
        )
        if name is not None:
            if names.count(name) > 1:
                raise InputError(
                    f"the header names the column {name} twice",
                    file=file,
                    hint="rename or remove one of them",
                )
            columns[role] = names.index(name)
        elif role in needed:
            return None
    return columns


@dataclass(frozen=True, slots=True)
class TableForm:
    """Form of a file's rows, as its beginning shows it."""

    delimiter: str = "\t"
    is_quoted: bool = False
    """True for a csv file; otherwise quotes are text."""
    first: list[str] = field(default_factory=list)
    """Fields of the first row."""


def table_form(
    path: Path, lines: Iterable[tuple[int, str]] | None = None, *, commas: bool = False
) -> TableForm:
    """Returns the form of a file's rows, or of those in numbered lines. With ``commas``, commas or semicolons
    may separate them without a header, too.

    Raises:
        InputError: an error of ``iter_lines``, or wrong quotes in the first row of a csv file.
    """
    head: list[tuple[int, str]] = []
    left = _HEAD_CHARACTERS
    for line, text in iter_lines(path) if lines is None else lines:
        head.append((line, text))
        left -= len(text) + 1
        if left < 0:
            break
    texts = [text for _, text in head if text.strip()]
    if not texts:
        return TableForm()
    stated = _STATED.fullmatch(texts[0])
    if stated:
        delimiter = stated[1]
    else:
        delimiter = "\t" if "\t" in texts[0] else _delimiter(head, commas=commas)
    is_quoted = delimiter != "\t" or _has_csv_quotes(texts)
    _, first = next(table_rows(path, TableForm(delimiter, is_quoted), head), (0, []))
    return TableForm(delimiter, is_quoted, first)


def table_rows(
    path: Path, form: TableForm, lines: Iterable[tuple[int, str]] | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yields the fields of every row of a file, or of lines numbered from 1, with the line on which the row
    ends. Blank lines are skipped.

    Raises:
        InputError: wrong quotes in a csv file, or an error of ``iter_lines``.
    """
    lines = iter_lines(path) if lines is None else lines
    if not form.is_quoted:
        for line, text in lines:
            if text:
                yield line, text.split(form.delimiter)
        return
    csv.field_size_limit(MAX_LINE_BYTES)
    texts = ("\n" if line == 1 and _STATED.fullmatch(text) else f"{text}\n" for line, text in lines)
    reader = csv.reader(texts, delimiter=form.delimiter, strict=True)
    line = 0
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise InputError(
                f"the quoting of this row is not valid CSV ({error})",
                file=path,
                line=line + 1,
                hint="double the quotes inside quoted fields, or write the file as JSON lines",
            ) from None
        if row is None:
            return
        line = reader.line_num
        if row:
            yield line, row


def _delimiter(lines: Iterable[tuple[int, str]], *, commas: bool) -> str:
    """Returns the separator of lines whose first has no tab: the sign that splits the header. If two signs
    do, it is the one that gives most rows the width of the header without a space after it, as in prose; then
    the one that the header has more often, or the semicolon.

    The first lines may be titles of a table, or else texts of one column, which the sign must not split. A
    title is no name of a column. The table below it begins within six lines; it has even rows, and three
    columns or an empty line above it.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    found = "\t"
    most = False, True, True
    for sign, other in (",;", ";,"):
        rows = list(csv.reader((text.replace("\r", " ") for _, text in lines), delimiter=sign))
        table = [row for row in dropwhile(lambda row: len(row) < 2, rows) if row]
        if not table:
            continue
        header = table[0]
        above = rows[: rows.index(header)]
        num_even = sum(len(row) == len(header) and list(map(str.lstrip, row)) == row for row in table)
        is_even = num_even > max(1, len(table) / 2)
        is_frequent = "".join(header).count(other) < len(header)
        is_table = commas or (are_names(header) and not ALL_NAMES.isdisjoint(map(normal_name, header)))
        if any(above):
            is_below = len(above) < 6 and (len(header) > 2 or [] in above)
            is_table = commas and is_below and normal_name("".join(above[0])) not in ALL_NAMES
        order = not any(above), is_even, is_frequent
        if is_table and order >= most:
            found = sign
            most = order
    return found


def _has_csv_quotes(texts: Sequence[str]) -> bool:
    """True if a csv writer has put the quotes into these lines, which tabs separate."""
    if not any('\t"' in text or text.startswith('"') for text in texts):
        return False
    widths: set[int] = set()
    try:
        for row in csv.reader((f"{text}\n" for text in texts), delimiter="\t", strict=True):
            widths.add(len(row))
    except csv.Error as error:
        if str(error) != "unexpected end of data":  # the end may come after the first megabyte
            widths.clear()
    if len(widths) == 1 and not all(text.count("\t") + 1 in widths for text in texts):
        return True  # lines that are no rows by themselves form whole rows
    enclosed = [inner for text in texts for inner in _ENCLOSED.findall(text)]
    wrong = sum('"' in _ENCLOSED.sub("", text) for text in texts)  # or parts of a field of several lines
    is_column = 2 * len(enclosed) > len(texts) and len(enclosed) > 4 * wrong
    return not wrong or is_column or sum('"' in inner for inner in enclosed) > wrong


def wrong_columns(
    file: Path, line: int, row: Sequence[str], form: TableForm, expected: str, *, hint: str
) -> InputError:
    """Returns the error of a row with another number of columns; it names the delimiter."""
    hint = f"columns are separated by {_SEPARATORS[form.delimiter]}; {hint}"
    return InputError(f"{len(row)} columns", file=file, line=line, expected=expected, hint=hint)
