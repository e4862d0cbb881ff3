"""Delimited files (corpora, questions, pairs, judgements): the fields of every row, by one rule of quoting
for all commands.

A tab separates fields, or a comma where the header or the name of the file says so. A newline ends a row. A
field is quoted if it begins with ``"``, ends with ``"``, and every quote between is doubled; all other quotes
are text. In a file that is not quoted as a whole (some quotes stand where no csv writer puts them, and too
few where only one does; its first megabyte decides) all of them are text. Files separated by commas are
always quoted.

A quoted field may go on over the following lines if it closes there and the row then has as many columns as
the first. This is decided from the row and the lines after it alone, so that reading can begin at any row.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path

from dpr.core.errors import InputError
from dpr.formats.column_names import ALL_NAMES, are_names, normal_name
from dpr.formats.text_input import MAX_LINE_BYTES, iter_lines, warn_of_file

_HEAD_CHARACTERS = 2**20
_COMPARED_LINES = 20
_SIGNS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "vertical bars"}
_INSIDE = re.compile(r'[^"]*(?:""[^"]*)*')  # what may stand between the quotes of a field


@dataclass(frozen=True, slots=True)
class TableForm:
    """What the beginning of a file says of its rows."""

    delimiter: str = "\t"
    width: int = 0
    """Columns of the first row; 0 in a file without rows."""
    is_quoted: bool | None = None
    """False where quotes are text; None where they are too few to tell."""
    rows: tuple[tuple[int, list[str]], ...] = ()
    """Line and fields of the first row and, if there is one, the second."""

    @property
    def first(self) -> list[str]:
        """The first row's fields."""
        return self.rows[0][1] if self.rows else []


def table_form(path: Path, *, commas: bool = False) -> TableForm:
    """The form of a file's rows; ``commas`` may separate them without a header too.

    Raises:
        InputError: what ``iter_lines`` raises; carriage returns that end rows.
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
        InputError: quotes that can be read in two ways, or what ``iter_lines`` raises.
    """
    return rows_of(iter_lines(path), form, path)


def rows_of(lines: Iterator[tuple[int, str]], form: TableForm, path: Path) -> Iterator[tuple[int, list[str]]]:
    """``table_rows`` of numbered lines."""
    delimiter, is_quoted = form.delimiter, form.is_quoted
    ahead: deque[tuple[int, str]] = deque()  # lines that were looked at and are not read yet

    def following() -> Iterator[str]:
        for _, text in list(ahead):
            yield text
        for entry in lines:
            ahead.append(entry)
            yield entry[1]

    while entry := ahead.popleft() if ahead else next(lines, None):
        line, text = entry
        if not text:
            continue
        if is_quoted is False or '"' not in text:
            yield line, text.split(delimiter)
            continue
        fields, opened = _split(text, delimiter)
        if opened >= 0:
            joined, taken = _joined(text, following(), delimiter)
            if joined is not None and len(joined) == form.width:
                inside = _rows_inside(taken, form.width, delimiter)
                last = line + len(taken)
                if inside and len(fields) == form.width and not is_quoted:
                    found = (
                        f"a quote opens here and closes in line {last}: one row, or {1 + inside} rows with"
                        " quotes in their texts"
                    )
                    raise InputError(
                        found,
                        file=path,
                        line=line,
                        hint="write the file as JSON lines, or put quotes around every field",
                    )
                if inside > (opened == 0):
                    warn_of_file(
                        path,
                        line,
                        f"a quoted field goes on to line {last} over lines that look like rows; is a quote"
                        " missing?",
                    )
                fields = joined
                for _ in taken:
                    line = ahead.popleft()[0]
            elif is_quoted:
                warn_of_file(path, line, "a quote opens here that does not close; it is read as text")
        yield line, fields


def form_of(lines: Iterable[tuple[int, str]], path: Path, *, commas: bool = False) -> TableForm:
    """The form of the rows that begin with these lines."""
    head: list[tuple[int, str]] = []
    left, is_whole = _HEAD_CHARACTERS, True
    for line, text in lines:
        if left < 0:
            is_whole = False
            break
        left -= len(text) + 1
        if text.strip():
            head.append((line, text))
    if not head:
        return TableForm()
    texts = [text for _, text in head]
    delimiter = _delimiter(texts, commas)
    if "\r" in texts[0] and '"' not in texts[0]:
        found = "a carriage return inside the first row"
        raise InputError(
            found,
            file=path,
            line=head[0][0],
            expected="lines that end with a newline",
            hint="save the file with line feeds",
        )

    width = index = strong = wrong = stray = 0
    enclosed: Counter[int] = Counter()
    rows: list[tuple[int, list[str]]] = []
    count = 0
    while index < len(head):
        line, unit = head[index]
        index += 1
        fields, opened = _split(unit, delimiter)
        is_certain = True
        if opened >= 0:
            joined, taken = _joined(unit, islice(texts, index, None), delimiter)
            if joined is None and index + len(taken) == len(head) and not is_whole:
                break
            if not width:
                width = (
                    len(fields)
                    if joined is None
                    else _first_width(fields, joined, texts[index + len(taken) :][:9], delimiter)
                )
            if joined is not None and len(joined) == width:
                is_certain = not (len(fields) == width and _rows_inside(taken, width, delimiter))
                unit, fields = "\n".join([unit, *taken]), joined
                index += len(taken)
        width = width or len(fields)
        count += 1
        if count <= 2:
            rows.append((line, fields))
        if is_certain and '"' in unit:
            for column, raw in enumerate(_raw_fields(unit, delimiter)):
                if not raw.startswith('"'):
                    stray += '"' in raw
                elif _unquoted(raw) is None:
                    wrong += 1
                else:
                    enclosed[column] += 1
                    strong += '"' in raw[1:-1] or delimiter in raw or "\n" in raw
    is_csv = (
        delimiter == ","
        or any(2 * number > count and number > 4 * wrong for number in enclosed.values())
        or (strong > 0 and strong >= wrong)
    )
    return TableForm(delimiter, width, True if is_csv else False if wrong or stray else None, tuple(rows))


def _first_width(alone: list[str], joined: list[str], texts: list[str], delimiter: str) -> int:
    """The columns of a first row of several lines: as many as the row after it has."""
    if not texts:
        return len(joined)
    fields, opened = _split(texts[0], delimiter)
    more = _joined(texts[0], iter(texts[1:]), delimiter)[0] if opened >= 0 else None
    return len(joined) if len(joined) in (len(fields), len(more or fields)) else len(alone)


def _delimiter(texts: list[str], commas: bool) -> str:
    """A tab if the first line has one, not in quotes; else a comma, where a header or ``commas`` say so."""
    with_tabs = [raw for raw in _raw_fields(texts[0], ",") if "\t" in raw]
    if with_tabs and not (
        commas and all(raw.startswith('"') and _end_of_quoted(raw, 1) >= len(raw) - 1 for raw in with_tabs)
    ):
        return "\t"
    cells = [normal_name(cell) for cell in _cells(texts[0], ",")]
    if len(cells) > 1 and are_names(cells) and {*cells} & ALL_NAMES:
        return ","
    compared = texts[:_COMPARED_LINES]
    comma_counts, other_counts = ({text.count(sign) for text in compared} for sign in ",;")
    is_semicolon = len(other_counts) == 1 and other_counts != {0} and len(comma_counts) > 1
    return "," if commas and len(cells) > 1 and not is_semicolon else "\t"


def _split(text: str, delimiter: str) -> tuple[list[str], int]:
    """The fields of one line, and which of them is quoted and still open at its end; -1 for none."""
    fields = text.split(delimiter)
    for index, raw in enumerate(fields):
        if raw[:1] == '"':
            value = _unquoted(raw)
            if value is None:
                break
            fields[index] = value
    else:
        return fields, -1
    # A delimiter in quotes, a quote that does not close on this line, or quotes that are text.
    fields, opened, start = [], -1, 0
    for raw in _raw_fields(text, delimiter):
        value = _unquoted(raw) if raw.startswith('"') else raw
        if value is None and opened < 0 and _end_of_quoted(text, start + 1) == len(text):
            opened = len(fields)
        fields.append(raw if value is None else value)
        start += len(raw) + 1
    return fields, opened


def _raw_fields(text: str, delimiter: str) -> Iterator[str]:
    """The fields of a row with their quotes."""
    pattern, start = _field(delimiter), 0
    while start <= len(text):
        raw = pattern.match(text, start)[1]  # type: ignore[index]  # it matches everywhere
        yield raw
        start += len(raw) + 1


@cache
def _field(delimiter: str) -> re.Pattern[str]:
    return re.compile(rf'("{_INSIDE.pattern}"|[^{delimiter}]*)(?:{delimiter}|\Z)')


def _unquoted(raw: str) -> str | None:
    """The text of a field that begins with a quote; None if it is not that of a csv file."""
    if len(raw) < 2 or raw[-1] != '"':
        return None
    inner = raw[1:-1]
    if '"' not in inner:
        return inner
    return None if '"' in inner.replace('""', "") else inner.replace('""', '"')


def _end_of_quoted(text: str, start: int = 0) -> int:
    return _INSIDE.match(text, start).end()  # type: ignore[union-attr]  # it matches everywhere


def _joined(first: str, following: Iterator[str], delimiter: str) -> tuple[list[str] | None, list[str]]:
    """The fields of a row whose quotes close in a later line, None where they do not, and the lines looked
    at."""
    taken: list[str] = []
    size = len(first)
    for text in following:
        taken.append(text)
        size += len(text)
        if size > MAX_LINE_BYTES:
            break
        end = _end_of_quoted(text)
        if end == len(text):
            continue
        if end + 1 < len(text) and text[end + 1] != delimiter:
            break
        fields, opened = _split("\n".join([first, *taken]), delimiter)
        if opened < 0:
            return fields, taken
    return None, taken


def _rows_inside(texts: Sequence[str], width: int, delimiter: str) -> int:
    """How many of the lines that a row goes on over could be rows themselves."""
    return sum(text.count(delimiter) + 1 == width and bool(text) for text in texts)


def require_readable(fields: Sequence[str], file: Path) -> None:
    """Refuses to write a row of which the lines could be read as rows."""
    first, *others = "\t".join(fields).split("\n")
    width = len(fields)
    if others and first.count("\t") + 1 == width and _rows_inside(others, width, "\t"):
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
