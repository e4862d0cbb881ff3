"""Passage collections: DPR's TSV (id, text, title), BEIR's ``corpus.jsonl`` and Parquet, read as a stream of any length."""

from __future__ import annotations

import csv
import gzip
import io
import json
import mmap
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import MAX_ID_BYTES, Passage
from dpr.formats.durable import durable_file
from dpr.formats.json_records import JsonRecord, describe, iter_json_records
from dpr.formats.text_input import MAX_LINE_BYTES, has_lone_surrogate, iter_lines

_QUOTE_HINT = 'a field that begins with a quote (") ends with one, and quotes inside it are doubled'
_HELD_HASHES = 1 << 20
_SEPARATED = {"\t": "tab", ",": "comma"}
_DEFAULT_COLUMNS = (0, 1, 2)  # of id, text and title, as in DPR
_JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")


def is_json_name(path: str | Path) -> bool:
    """Whether a file name, with or without ``.gz``, says JSON."""
    return str(path).lower().removesuffix(".gz").endswith(_JSON_SUFFIXES)


def read_passages(
    path: str | Path,
    *,
    id_col: int = 0,
    text_col: int = 1,
    title_col: int = 2,
    id_prefix: str = "",
    start: int = 0,
    stop: int | None = None,
) -> Iterator[Passage]:
    """Passages number ``start`` to ``stop`` of a file, in order.

    TSV as DPR reads it: Python's csv quoting, rows whose id is literally ``id`` are headers, all ``"`` around the text are stripped.
    A header in the first line that names ``id`` and ``text`` says where columns are, unless they are given other than by default.
    ``title_col`` beyond the row, or negative: no titles. Empty texts are passed on. A .csv file without a tab in its first line is
    separated by commas. Names in .json/.jsonl are read as BEIR corpora (``_id``, ``title``, ``text``), those in .parquet by the same
    names. Plain or gzip. An id has at most MAX_ID_BYTES bytes, prefix included.

    Raises:
        InputError: names the file and line.
    """
    file = Path(path)
    if _has_records(file):
        rows = _record_passages(file, id_prefix, start)
    else:
        rows = _tsv_passages(file, (id_col, text_col, title_col), id_prefix, start)
    yield from (passage for passage in islice(rows, stop) if passage is not None)


def check_unique_ids(path: str | Path, *, id_col: int = 0, text_col: int = 1, title_col: int = 2) -> int:
    """Number of passages, after checking that no id occurs twice. Memory does not grow with the corpus: see ``_sorted_hashes``.

    Raises:
        InputError: names the first id that occurs twice, and its two lines; or there is no room for a temporary file.
    """
    file = Path(path)
    columns = (id_col, text_col, title_col)
    # hash() is keyed at random per process, so no file can be made to collide on purpose.
    hashes = _sorted_hashes(hash(key) for _, key in _numbered_ids(file, columns))
    suspects: set[int] = set()
    for start in range(0, len(hashes), _HELD_HASHES):
        part = hashes[start : start + _HELD_HASHES + 1]
        suspects.update(part[1:][part[1:] == part[:-1]].tolist())
    if suspects:
        seen: dict[str, int] = {}
        for number, key in _numbered_ids(file, columns):
            if hash(key) in suspects and seen.setdefault(key, number) != number:
                raise InputError(f"passage id {key!r} is already used at line {seen[key]}", file=file, line=number, expected="unique ids")
    return len(hashes)


def _sorted_hashes(hashes: Iterator[int]) -> np.ndarray:
    """Sorted int64, in memory as far as they are few; more are mapped from a file without a name, which is gone with the array."""
    held = np.fromiter(islice(hashes, _HELD_HASHES), dtype=np.int64)
    if len(held) == _HELD_HASHES:
        try:
            with tempfile.TemporaryFile() as spilled:
                while len(held):
                    spilled.write(held.data)
                    held = np.fromiter(islice(hashes, _HELD_HASHES), dtype=np.int64)
                spilled.flush()
                held = np.frombuffer(mmap.mmap(spilled.fileno(), 0), dtype=np.int64)
        except OSError as error:
            found = f"no room for a temporary file of 8 bytes per passage ({error.strerror or error})"
            raise InputError(found, file=tempfile.gettempdir(), hint="set TMPDIR to a folder with more room") from None
    held.sort()
    return held


def write_passages(path: str | Path, passages: Iterable[Passage]) -> int:
    """Writes a corpus, TSV with header or, for names in .json/.jsonl, BEIR's JSON lines; ``.gz`` is packed. Returns how many.

    Raises:
        InputError: a passage that TSV cannot hold so that it is read back the same (no id, id ``id``, quotes around the text).
    """
    file = Path(path)
    count = 0
    with write_text(file) as out:
        if is_json_name(file):
            for passage in passages:
                _require_id(passage, file)
                record = {"_id": passage.id, "title": passage.title, "text": passage.text}
                out.write(json.dumps(record, ensure_ascii=False) + "\n")
                count += 1
            return count
        writer = csv.writer(out, delimiter="\t", lineterminator="\n")
        writer.writerow(("id", "text", "title"))
        for passage in passages:
            _require_id(passage, file)
            if passage.id == "id" or passage.text != passage.text.strip('"') or "\r" in f"{passage.id}{passage.text}{passage.title}":
                reason = "the id 'id', quotes around a text, and carriage returns do not survive in a passages TSV"
                raise InputError(f"passage {passage.id!r} cannot be written: {reason}", file=file, hint="write .jsonl instead")
            writer.writerow((passage.id, passage.text, passage.title))
            count += 1
    return count


@contextmanager
def write_text(path: Path, *, note: Mapping[str, Any] | None = None) -> Iterator[IO[str]]:
    """A durable UTF-8 text file, packed where the name ends in ``.gz`` (with no time stamp inside, so equal content is equal bytes)."""
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


def iter_csv_rows(path: Path, delimiter: str = "\t") -> Iterator[tuple[int, list[str]]]:
    """Rows of a file as Python's csv module splits them, each with the line it ends on; blank lines are left out.

    Raises:
        InputError: broken quoting, or a field over the limit.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    line = 0

    def numbered() -> Iterator[str]:
        nonlocal line
        for number, text in iter_lines(path):
            line = number
            yield text

    texts = numbered()
    for text in texts:
        if not text:
            continue
        # Splitting at the delimiter is three times faster than csv, which stays the judge of every row where they could differ.
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
    """The fields of a line in which every quote is where csv puts it when it writes; None for all other lines."""
    if "\r" in text:
        return None
    fields = text.split(delimiter)
    if '"' not in text:
        return fields
    for place, field in enumerate(fields):
        if '"' in field:
            if len(field) < 2 or field[0] != '"' or field[-1] != '"':
                return None
            inner = field[1:-1]
            if '"' in inner:
                if '"' in inner.replace('""', ""):
                    return None
                inner = inner.replace('""', '"')
            fields[place] = inner
    return fields


def _with_newlines(first: str, following: Iterator[str]) -> Iterator[str]:
    """A row's first line and, as far as csv asks for them, the lines after it."""
    yield first + "\n"
    for text in following:
        yield text + "\n"
    raise _UnclosedQuoteError  # csv asks for another line only inside quotes, and would take the end of the file for their end


class _UnclosedQuoteError(Exception):
    pass


def _has_records(path: Path) -> bool:
    return is_json_name(path) or path.suffix.lower() == ".parquet"


def _records(path: Path) -> Iterator[JsonRecord]:
    if is_json_name(path):
        yield from iter_json_records(path)
        return
    from dpr.formats.training_files.arrow_rows import arrow_rows  # for this format alone

    for _, number, value in arrow_rows(path):
        yield JsonRecord(number, value, None, "", 0, 0)


def _numbered_ids(path: Path, columns: tuple[int, int, int]) -> Iterator[tuple[int, str]]:
    if _has_records(path):
        for record in _records(path):
            yield record.line, json_id(record, path, ("_id", "id"))
    else:
        for line, row, (id_col, _, _) in _checked_rows(path, columns):
            yield line, row[id_col]


def _checked_rows(path: Path, columns: tuple[int, int, int]) -> Iterator[tuple[int, list[str], tuple[int, int, int]]]:
    """Data rows with their line and the columns of id, text and title; a title column beyond the row is -1."""
    width = 0
    delimiter = _delimiter(path)
    is_header = False
    for line, row in iter_csv_rows(path, delimiter):
        if len(row) != width:
            if not width:
                columns, is_header = _named_columns(row, columns)
            if width or len(row) <= max(columns[:2]):
                expected = f"{width}, as in the first row" if width else f"at least {max(columns[:2]) + 1}"
                hint = f"columns are separated by {_SEPARATED[delimiter]}s" + ("; check the quotes above this line" if width else "")
                raise InputError(f"{len(row)} columns", file=path, line=line, expected=expected, hint=hint)
            width = len(row)
            columns = columns if 0 <= columns[2] < width else (*columns[:2], -1)
        if is_header or row[columns[0]] == "id":
            is_header = False
            continue
        if not row[columns[0]]:
            raise InputError("empty passage id", file=path, line=line, expected=f"an id in column {columns[0]}")
        yield line, row, columns


def _delimiter(path: Path) -> str:
    """What separates columns."""
    if path.name.lower().removesuffix(".gz").endswith(".csv"):
        first = next((text for _, text in iter_lines(path) if text), "")
        if "\t" not in first and "," in first:
            return ","
    return "\t"


def _named_columns(first: list[str], columns: tuple[int, int, int]) -> tuple[tuple[int, int, int], bool]:
    """The columns that a header names, and whether it is one; those given where others than the default were asked for."""
    names = [name.strip().lower() for name in first]
    if columns != _DEFAULT_COLUMNS or not {"id", "text"} <= set(names):
        return columns, False
    return (names.index("id"), names.index("text"), names.index("title") if "title" in names else -1), True


def _tsv_passages(path: Path, columns: tuple[int, int, int], prefix: str, start: int) -> Iterator[Passage | None]:
    """One item per row; None before ``start``, where making records would be wasted."""
    for number, (line, row, (id_col, text_col, title_col)) in enumerate(_checked_rows(path, columns)):
        if number < start:
            yield None
        else:
            title = row[title_col] if title_col >= 0 else ""
            yield Passage(row[text_col].strip('"'), title, _whole_id(prefix, row[id_col], path, line))


def _record_passages(path: Path, prefix: str, start: int) -> Iterator[Passage | None]:
    for number, record in enumerate(_records(path)):
        key = json_id(record, path, ("_id", "id"))
        if number < start:
            yield None
            continue
        text, title = record.value.get("text"), record.value.get("title")
        if not isinstance(text, str):
            found = "no 'text'" if text is None else f"text is {describe(text)}"
            raise InputError(found, file=path, line=record.line, expected="a string")
        if title is not None and not isinstance(title, str):
            raise InputError(f"title is {describe(title)}", file=path, line=record.line, expected="a string or null")
        if has_lone_surrogate(text) or has_lone_surrogate(title or ""):
            raise InputError("half of a character (lone surrogate)", file=path, line=record.line, expected="valid Unicode")
        yield Passage(text, title or "", _whole_id(prefix, key, path, record.line))


def json_id(record: JsonRecord, path: Path, keys: tuple[str, ...]) -> str:
    """The id of a JSON record under the first of ``keys`` it has, always a string.

    Raises:
        InputError: the record is broken or has no usable id.
    """
    if record.error is not None:
        raise record.error
    value = next((record.value[key] for key in keys if key in record.value), None)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value or has_lone_surrogate(value):
        found = f"no {keys[0]!r}" if value is None else f"{keys[0]} is {describe(value)}"
        raise InputError(found, file=path, line=record.line, expected="a string that is not empty, or an integer")
    return value


def _whole_id(prefix: str, key: str, path: Path, line: int) -> str:
    whole = prefix + key
    if 4 * len(whole) > MAX_ID_BYTES and (size := len(whole.encode(errors="replace"))) > MAX_ID_BYTES:
        raise InputError(f"a passage id of {size} bytes", file=path, line=line, expected=f"at most {MAX_ID_BYTES}")
    return whole


def _require_id(passage: Passage, path: Path) -> None:
    if not passage.id:
        raise InputError(f"a passage without id cannot be written ({passage.text[:40]!r})", file=path)
