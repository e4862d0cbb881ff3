"""Delimited files (corpora, questions, pairs, judgements): the fields of every row, by one rule of quoting
for all commands.

A tab separates fields, or a comma where the header or the name of the file says so. Whether quotes are those of a
csv file or text is decided for the whole file by its first megabyte. In a csv file they must be right, or the row
is refused; a field in quotes may go on over lines. In any other file a newline ends a row, and quotes are text; where
the first megabyte has none, those around a field go.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.formats.column_names import ALL_NAMES, are_names, normal_name
from dpr.formats.text_input import MAX_LINE_BYTES, iter_lines, warn_of_file

_HEAD_CHARACTERS = 2**20
_COMPARED_LINES = 20
_SIGNS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "vertical bars"}
_ENCLOSED = re.compile(r'(?<![^\t])"((?:[^"]|"")*)"(?![^\t])')  # a whole field between tabs
_OPENING = re.compile(r'(?<![^\t])"')


@dataclass(frozen=True, slots=True)
class TableForm:
    """What the beginning of a file says of its rows."""

    delimiter: str = "\t"
    width: int = 0
    """Columns of the first row; 0 in a file without rows."""
    is_quoted: bool | None = None
    """True for a csv file, False where quotes are text; None where the beginning has none."""
    rows: tuple[tuple[int, list[str]], ...] = ()
    """Line and fields of the first row and, if there is one, the second."""

    @property
    def first(self) -> list[str]:
        """The first row's fields."""
        return self.rows[0][1] if self.rows else []


def table_form(path: Path, *, commas: bool = False) -> TableForm:
    """The form of a file's rows; ``commas`` may separate them without a header too.

    Raises:
        InputError: what ``iter_lines`` raises; quotes that can be read in two ways; carriage returns that end rows.
    """
    try:
        status = path.stat()
    except OSError:
        return form_of(iter_lines(path), path, commas=commas)
    return _stored_form(path, (status.st_ino, status.st_size, status.st_mtime_ns), commas)


@lru_cache(maxsize=64)
def _stored_form(path: Path, state: tuple[int, ...], commas: bool) -> TableForm:
    return form_of(iter_lines(path), path, commas=commas)


def table_rows(path: Path, form: TableForm) -> Iterator[tuple[int, list[str]]]:
    """The fields of every row, with the line that the row ends on. Blank lines are skipped.

    Raises:
        InputError: wrong quotes in a csv file, or what ``iter_lines`` raises.
    """
    return rows_of(iter_lines(path), form, path)


def rows_of(lines: Iterable[tuple[int, str]], form: TableForm, path: Path) -> Iterator[tuple[int, list[str]]]:
    """``table_rows`` of numbered lines, counted from 1."""
    delimiter = form.delimiter
    if form.is_quoted:
        yield from _csv_rows(lines, form, path)
        return
    for line, text in lines:
        if not text:
            continue
        fields = text.split(delimiter)
        if form.is_quoted is None and '"' in text:
            with suppress(csv.Error):  # quotes that are text
                fields = next(_csv_reader([text], delimiter))
        yield line, fields


def _csv_rows(
    lines: Iterable[tuple[int, str]], form: TableForm, path: Path
) -> Iterator[tuple[int, list[str]]]:
    taken: list[str] = []  # the lines of the row

    def texts() -> Iterator[str]:
        for _, text in lines:
            taken.append(text)
            yield f"{text}\n"

    reader = _csv_reader(texts(), form.delimiter)
    line = 0
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise InputError(
                f"the quotes of this row are not those of a csv file ({error})",
                file=path,
                line=line + 1,
                hint="double the quotes inside of quotes, or write the file as JSON lines",
            ) from None
        if row is None:
            return
        if len(taken) > 1 and any(_looks_like_row(text, form) for text in taken[1:]):
            found = f"a quoted field goes on to line {reader.line_num} over lines that look like rows"
            warn_of_file(path, line + 1, f"{found}; is a quote missing?")
        taken.clear()
        line = reader.line_num
        if row:
            yield line, row


def _csv_reader(texts: Iterable[str], delimiter: str) -> Any:
    csv.field_size_limit(MAX_LINE_BYTES)
    return csv.reader(texts, delimiter=delimiter, strict=True)


def _looks_like_row(text: str, form: TableForm) -> bool:
    return bool(text) and text.count(form.delimiter) + 1 == form.width


def form_of(lines: Iterable[tuple[int, str]], path: Path, *, commas: bool = False) -> TableForm:
    """The form of the rows that begin with these lines."""
    head: list[tuple[int, str]] = []
    left = _HEAD_CHARACTERS
    for line, text in lines:
        if left < 0:
            break
        left -= len(text) + 1
        head.append((line, text))
    texts = [text for _, text in head if text.strip()]
    if not texts:
        return TableForm()
    if "\r" in texts[0] and '"' not in texts[0]:
        raise InputError(
            "a carriage return inside the first row",
            file=path,
            line=next(line for line, text in head if text.strip()),
            expected="lines that end with a newline",
            hint="save the file with line feeds",
        )
    delimiter = _delimiter(texts, commas)
    is_quoted = delimiter == "," or _has_csv_quotes(texts, path, is_whole=left >= 0)
    form = TableForm(delimiter, is_quoted=is_quoted)
    rows = tuple(islice(rows_of(head, form, path), 2))
    return replace(form, width=len(rows[0][1]), rows=rows)


def _has_csv_quotes(texts: Sequence[str], path: Path, *, is_whole: bool) -> bool | None:
    """Whether a csv writer has put the quotes into these lines, which tabs separate; None where there are none.

    Raises:
        InputError: they are rows of the same number of columns both ways.
    """
    if not any('"' in text for text in texts):
        return None
    if not any(_OPENING.search(text) for text in texts):
        return False
    enclosed = [field for text in texts for field in _ENCLOSED.findall(text)]
    wrong = sum('"' in _ENCLOSED.sub("", text) for text in texts)  # or parts of a field of several lines
    is_column = 2 * len(enclosed) > len(texts) and len(enclosed) > 4 * wrong
    escaped = sum('"' in field for field in enclosed)
    widths = []
    try:
        for row in _csv_reader((f"{text}\n" for text in texts), "\t"):
            widths.append(len(row))
        is_right = True
    except csv.Error as error:
        is_right = not is_whole and str(error) == "unexpected end of data"
    if is_right and len({*widths}) == 1 and len(widths) < len(texts):
        are_rows = all(text.count("\t") + 1 == widths[0] for text in texts)
        if are_rows and not is_column and not escaped:
            raise InputError(
                f"quotes join {len(texts)} lines to {len(widths)} rows, or are part of the texts",
                file=path,
                line=1,
                hint="write the file as JSON lines, or put quotes around every field",
            )
        return True
    return not wrong or is_column or escaped > wrong


def _delimiter(texts: list[str], commas: bool) -> str:
    """A tab if the first line has one, not in quotes; else a comma, where a header or ``commas`` say so."""
    if "\t" in (re.sub(r'"[^"]*("|$)', "", texts[0]) if commas else texts[0]):
        return "\t"
    cells = [normal_name(cell) for cell in _cells(texts[0], ",")]
    if len(cells) > 1 and are_names(cells) and {*cells} & ALL_NAMES:
        return ","
    compared = texts[:_COMPARED_LINES]
    comma_counts, other_counts = ({text.count(sign) for text in compared} for sign in ",;")
    is_semicolon = len(other_counts) == 1 and other_counts != {0} and len(comma_counts) > 1
    return "," if commas and len(cells) > 1 and not is_semicolon else "\t"


def require_readable(fields: Sequence[str], file: Path) -> None:
    """Refuses to write a row of which the lines could be read as rows."""
    form = TableForm(width=len(fields))
    first, *others = "\t".join(fields).split("\n")
    if _looks_like_row(first, form) and any(_looks_like_row(text, form) for text in others):
        raise InputError(
            f"{fields[0][:40]!r}: lines of a text look like rows of the table",
            file=file,
            hint="write .jsonl instead",
        )


def wrong_columns(
    file: Path, line: int, row: Sequence[str], form: TableForm, expected: str, *, hint: str = ""
) -> InputError:
    """The error of a row with another number of columns; names the delimiter that it seems to have
    instead."""
    says = f"columns are separated by {_SIGNS[form.delimiter]}"
    separator, cells = separator_of(row[0]) if len(row) == 1 else ("", [])
    if separator:
        says += f", this row has {len(cells)} separated by {separator}: {' | '.join(cells)[:80]}"
    return InputError(
        f"{len(row)} columns",
        file=file,
        line=line,
        expected=expected,
        hint="; ".join(filter(None, (says, hint))),
    )


def separator_of(line: str) -> tuple[str, list[str]]:
    """What separates the columns of a row that has no tab, by name, and the columns; no name where nothing
    does."""
    for sign in ";,|":
        if len(cells := _cells(line, sign)) > 1:
            return _SIGNS[sign], cells
    return "", []


def _cells(line: str, sign: str) -> list[str]:
    """The fields of one line, whatever it holds; none where they cannot be told."""
    try:
        return [field.strip() for field in next(csv.reader([line.replace("\r", " ")], delimiter=sign), [])]
    except csv.Error:
        return []
