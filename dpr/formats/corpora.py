"""Passage collections: DPR's TSV (id, text, title), BEIR's ``corpus.jsonl`` and Parquet, read as a stream of any length."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import MAX_ID_BYTES, Origin, Passage
from dpr.formats.json_records import iter_json_objects
from dpr.formats.origins import origin_of, origin_record
from dpr.formats.sorted_hashes import repeated_hashes, sorted_parts
from dpr.formats.text_input import MAX_LINE_BYTES, LinePlace, are_column_names, has_lone_surrogate, iter_lines, located, warn_of_header
from dpr.formats.training_records import checked_text
from dpr.storage.durable import durable_file
from dpr.storage.strict_json import describe

_QUOTE_HINT = 'a field that begins with a quote (") ends with one, and quotes inside it are doubled'
_HELD_HASHES = 1 << 20
_HEADER = ("id", "text", "title")
_TEXT_NAMES = ("text", "passage", "passage_text", "paragraph", "contents", "content", "body", "document", "context")
_SEPARATED = {"\t": "tab", ",": "comma"}
DEFAULT_COLUMNS = (0, 1, 2)  # of id, text and title, as in DPR
Columns = tuple[int, int, int]
_Row = tuple[int, str, str, str, Origin | None]  # line, id, text, title, where it was taken from


def is_json_name(path: str | Path) -> bool:
    """Whether a file name is that of JSON, with or without ``.gz``."""
    return str(path).lower().removesuffix(".gz").endswith((".jsonl", ".json", ".ndjson"))


def read_passages(
    path: str | Path,
    *,
    id_col: int = 0,
    text_col: int = 1,
    title_col: int = 2,
    id_prefix: str = "",
    start: int = 0,
    stop: int | None = None,
    place: LinePlace | None = None,
) -> Iterator[Passage]:
    """Passages number ``start`` to ``stop`` of a file, in order; counted from ``place``, which is that of a row, where it is given.

    TSV as DPR reads it: Python's csv quoting, all ``"`` around the text are stripped. A first row of column names is a header, there and
    wherever it is repeated; one that names ``id`` and ``text`` defines the columns, unless others than the default are given. There are no
    titles if ``title_col`` is negative or beyond the row. Empty texts are passed on. A .csv file without a tab in its first line is
    separated by commas. Names in .json/.jsonl are read as BEIR corpora (``_id``, ``title``, ``text``), .parquet by the same column names.
    Plain or gzip. An id has at most MAX_ID_BYTES bytes, prefix included.

    Raises:
        InputError: names the file and line.
    """
    file = Path(path)
    rows = _record_rows(file, start, place) if has_records(file) else _tsv_rows(file, (id_col, text_col, title_col), place)
    for line, key, text, title, origin in islice(rows, start, stop):
        whole = id_prefix + key
        if 4 * len(whole) > MAX_ID_BYTES and (size := len(whole.encode(errors="replace"))) > MAX_ID_BYTES:
            raise InputError(f"a passage id of {size} bytes", file=file, line=line, expected=f"at most {MAX_ID_BYTES}")
        yield Passage(text, title, whole, origin=origin)


def check_unique_ids(path: str | Path, *, id_col: int = 0, text_col: int = 1, title_col: int = 2) -> int:
    """Checks that no id occurs twice, and returns the number of passages. Memory does not grow with the corpus.

    Raises:
        InputError: an id occurs twice (names it and its two lines), or there is no room for a temporary file.
    """
    file = Path(path)
    columns = (id_col, text_col, title_col)
    count = 0

    def hashes() -> Iterator[np.ndarray]:
        nonlocal count
        # hash() is keyed at random per process, so no file can be made to collide on purpose.
        keys = (hash(key) for _, key in numbered_ids(file, columns))
        while len(held := np.fromiter(islice(keys, _HELD_HASHES), dtype=np.int64)):
            count += len(held)
            yield held.view(np.uint64)[:, None]

    suspects = set(repeated_hashes(sorted_parts(hashes())).view(np.int64).tolist())
    if suspects:
        seen: dict[str, int] = {}
        for number, key in numbered_ids(file, columns):
            if hash(key) in suspects and seen.setdefault(key, number) != number:
                raise repeated_id(file, key, number, seen[key])
    return count


def repeated_id(file: Path, key: str, line: int, first_line: int) -> InputError:
    """The error of an id that occurs twice."""
    return InputError(f"passage id {key!r} is already used at line {first_line}", file=file, line=line, expected="unique ids")


def write_passages(path: str | Path, passages: Iterable[Passage]) -> int:
    """Writes a corpus, TSV with header or, for names in .json/.jsonl, BEIR's JSON lines; ``.gz`` is packed. Returns how many.

    Where a passage was taken from is written in JSON lines only, into BEIR's object ``metadata``.

    Raises:
        InputError: a passage that would not be read back the same (no id; in TSV also one like the header, or with quotes around the text).
    """
    file = Path(path)
    count = 0
    is_json = is_json_name(file)
    with durable_text(file) as out:
        writer = csv.writer(out, delimiter="\t", lineterminator="\n")
        if not is_json:
            writer.writerow(_HEADER)
        for count, passage in enumerate(passages, 1):  # noqa: B007
            if not passage.id:
                raise InputError(f"a passage without id cannot be written ({passage.text[:40]!r})", file=file)
            if is_json:
                record: dict[str, Any] = {"_id": passage.id, "title": passage.title, "text": passage.text}
                if passage.origin is not None:
                    record["metadata"] = origin_record(passage.origin)
                out.write(json.dumps(record, ensure_ascii=False) + "\n")
                continue
            row = (passage.id, passage.text, passage.title)
            if row == _HEADER or passage.text != passage.text.strip('"') or "\r" in "".join(row):
                reason = "column names, quotes around a text, and carriage returns do not survive in a passages TSV"
                raise InputError(f"passage {passage.id!r} cannot be written: {reason}", file=file, hint="write .jsonl instead")
            writer.writerow(row)
    return count


def require_word(value: str, file: Path, *, hint: str | None = None) -> None:
    """Refuses an id that columns separated by spaces or tabs cannot hold."""
    if value.split() != [value]:
        raise InputError(f"the id {value!r} is empty or holds white space, which this format cannot hold", file=file, hint=hint)


@contextmanager
def durable_text(path: Path, *, note: Mapping[str, Any] | None = None) -> Iterator[IO[str]]:
    """A durable UTF-8 text file; ``.gz`` is packed (without a time stamp, so that equal content gives equal bytes)."""
    try:
        if path.name.endswith(".gz"):
            with (
                durable_file(path, "wb", note=note) as raw,
                gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
                io.TextIOWrapper(packed, encoding="utf-8", newline="") as out,
            ):
                yield out
        else:
            with durable_file(path, note=note) as out:
                yield out
    except UnicodeEncodeError as error:
        raise InputError(f"half a character ({error.object[error.start]!a}) cannot be written as UTF-8", file=path) from None


def iter_csv_rows(path: Path, delimiter: str = "\t", place: LinePlace | None = None) -> Iterator[tuple[int, list[str]]]:
    """Rows of a file as Python's csv module splits them, each with the line it ends on; blank lines are skipped.

    Reading begins at ``place``, which is kept at the first line of the row read last.

    Raises:
        InputError: broken quoting, or a field over the limit.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    place = place or LinePlace()
    line, inner = 0, replace(place)

    def numbered() -> Iterator[str]:
        nonlocal line
        for number, text in iter_lines(path, inner):
            line = number
            yield text

    texts = numbered()
    for text in texts:
        if not text:
            continue
        # Splitting at the delimiter is three times faster than csv, which reads every row where they could differ.
        place.line, place.offset = inner.line, inner.offset
        row = _plain_fields(text, delimiter)
        if row is None:
            start = line
            try:
                row = next(csv.reader(_with_newlines(text, texts), delimiter=delimiter))
            except csv.Error as error:
                raise InputError(f"not a {_SEPARATED[delimiter]}-separated row: {error}", file=path, line=line, hint=_QUOTE_HINT) from None
            except _UnclosedQuoteError:
                raise InputError("a quote opens in this row that never closes", file=path, line=start, hint=_QUOTE_HINT) from None
        yield line, row


def _plain_fields(text: str, delimiter: str) -> list[str] | None:
    """The fields of a line whose quotes are all where csv writes them; None for all other lines."""
    if "\r" in text:
        return None
    fields = text.split(delimiter)
    if '"' not in text:
        return fields
    for index, field in enumerate(fields):
        if '"' in field:
            if len(field) < 2 or field[0] != '"' or field[-1] != '"':
                return None
            inner = field[1:-1]
            if '"' in inner:
                if '"' in inner.replace('""', ""):
                    return None
                inner = inner.replace('""', '"')
            fields[index] = inner
    return fields


def _with_newlines(first: str, following: Iterator[str]) -> Iterator[str]:
    """A row's first line, and the lines after it for as long as csv asks for them."""
    yield first + "\n"
    for text in following:
        yield text + "\n"
    raise _UnclosedQuoteError  # csv asks for another line only inside quotes, and would take the end of the file for their end


class _UnclosedQuoteError(Exception):
    pass


def has_records(path: Path) -> bool:
    """Whether a corpus of this name holds records with named fields: JSON or Parquet, not TSV."""
    return is_json_name(path) or path.suffix.lower() == ".parquet"


def read_records(path: Path, place: LinePlace | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line and value of every record of such a file, in the order of its passages; of JSON lines, from ``place`` on."""
    if is_json_name(path):
        return iter_json_objects(path, place)
    from dpr.formats.training_files.arrow_rows import arrow_rows  # for this format alone

    return ((number, value) for _, number, value in arrow_rows(path))


def numbered_ids(path: Path, columns: Columns, place: LinePlace | None = None) -> Iterator[tuple[int, str]]:
    """Line and id of every passage from ``place`` on, which is kept at the row read last."""
    if not has_records(path):
        yield from ((line, key) for line, key, *_ in _tsv_rows(path, columns, place))
        return
    for line, value in read_records(path, place):
        with located(path, line):
            key = first_id(value, ("_id", "id"))
        yield line, key


def _tsv_rows(path: Path, columns: Columns, place: LinePlace | None) -> Iterator[_Row]:
    """Every data row."""
    width, header = 0, list[str]()
    delimiter = csv_delimiter(path)
    rows = iter_csv_rows(path, delimiter, place)
    is_passed = place is not None and place.offset > 0
    if is_passed:  # the first row of the file says nevertheless where the columns are
        rows = chain(islice(iter_csv_rows(path, delimiter), 1), rows)
    for line, row in rows:
        if len(row) != width:
            if not width:
                columns, header = _named_columns(row, columns, path, line)
            if width or len(row) <= max(columns[:2]):
                expected = f"{width}, as in the first row" if width else f"at least {max(columns[:2]) + 1}"
                hint = f"columns are separated by {_SEPARATED[delimiter]}s" + ("; check the quotes above this line" if width else "")
                raise InputError(f"{len(row)} columns", file=path, line=line, expected=expected, hint=hint)
            width = len(row)
            id_col, text_col, title_col = columns
            has_titles = 0 <= title_col < width
        key = row[id_col]
        if is_passed or row == header:  # headers stand in the middle of files that were joined
            is_passed = False
            continue
        if not key:
            raise InputError("empty passage id", file=path, line=line, expected=f"an id in column {id_col}")
        yield line, key, row[text_col].strip('"'), row[title_col] if has_titles else "", None


def csv_delimiter(path: Path) -> str:
    """A tab, or the comma of a .csv file without one in its first line."""
    if path.name.lower().removesuffix(".gz").endswith(".csv"):
        first = next((text for _, text in iter_lines(path) if text), "")
        if "\t" not in first and "," in first:
            return ","
    return "\t"


def _named_columns(first: list[str], columns: Columns, path: Path, line: int) -> tuple[Columns, list[str]]:
    """The columns, as the first row names them if it is a header and ``columns`` are the default; and the row, empty if it is none."""
    names = [name.strip().lower() for name in first]
    id_col, text_col, _ = columns
    if columns == DEFAULT_COLUMNS and {"id", "text"} <= set(names):
        return (names.index("id"), names.index("text"), names.index("title") if "title" in names else -1), first
    if len(first) <= max(id_col, text_col) or names[id_col] != "id" or not are_column_names(first):
        return columns, []
    if names[text_col] not in _TEXT_NAMES:
        warn_of_header(path, line, tuple(first))
    return columns, first


def _record_rows(path: Path, start: int, place: LinePlace | None) -> Iterator[_Row]:
    """Every record; before ``start`` only ids are checked."""
    for index, (line, value) in enumerate(read_records(path, place)):
        with located(path, line):
            key, text, title, origin = first_id(value, ("_id", "id")), "", "", None
            if index >= start:
                text = checked_text(value, "text")
                title = "" if value.get("title") is None else checked_text(value, "title")
                origin = origin_of(value)
        yield line, key, text, title, origin


def first_id(value: dict[str, Any], keys: tuple[str, ...], default: str | None = None) -> str:
    """The id under the first of ``keys`` that the record has, as a string; ``default`` if there is none or it is null.

    Raises:
        ValueError: there is no usable id.
    """
    chosen = next((value[key] for key in keys if key in value), None)
    if chosen is None and default is not None:
        return default
    if isinstance(chosen, int) and not isinstance(chosen, bool):
        return str(chosen)
    if not isinstance(chosen, str) or not chosen or has_lone_surrogate(chosen):
        problem = f"no {keys[0]!r}" if chosen is None else f"{keys[0]} is {describe(chosen)}"
        raise ValueError(f"{problem}, expected a string that is not empty, or an integer")
    return chosen
