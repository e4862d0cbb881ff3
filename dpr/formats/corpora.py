"""Passage collections: DPR's TSV (id, text, title), BEIR's ``corpus.jsonl`` and Parquet, read as a stream of
any length."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.paths import user_path
from dpr.core.records import MAX_ID_BYTES, Origin, Passage
from dpr.formats.column_names import (
    PASSAGE_IDS,
    PASSAGE_TEXTS,
    QUESTION_IDS,
    QUESTIONS,
    TITLES,
    are_names,
    name_in,
    named_columns,
    normal_name,
    require_known_names,
    require_name,
    warn_of_header,
)
from dpr.formats.delimited import TableForm, require_readable, table_form, table_rows, wrong_columns
from dpr.formats.json_records import iter_json_objects
from dpr.formats.origins import origin_of, origin_record
from dpr.formats.sorted_hashes import repeated_hashes, sorted_parts
from dpr.formats.text_input import LinePlace, located
from dpr.formats.training_records import checked_text, id_of, title_in
from dpr.storage.durable import durable_file

_HELD_HASHES = 1 << 20
_HEADER = ("id", "text", "title")
# files of questions are looked up too
_NAMES = {
    "ids": (*PASSAGE_IDS, *QUESTION_IDS),
    "texts": (*PASSAGE_TEXTS, *QUESTIONS),
}
DEFAULT_COLUMNS = (0, 1, 2)  # of id, text and title, as in DPR
Columns = tuple[int, int, int]
_Row = tuple[int, str, str, str, Origin | None]  # line, id, text, title, where it was taken from


def is_json_name(path: str | Path) -> bool:
    """Whether a file name is that of JSON, with or without ``.gz``."""
    return str(path).lower().removesuffix(".gz").endswith((".jsonl", ".json", ".ndjson"))


def is_csv_name(path: Path) -> bool:
    """Whether commas may separate the columns of a file of this name, with or without ``.gz``."""
    return path.name.lower().removesuffix(".gz").endswith(".csv")


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
    """Passages number ``start`` to ``stop`` of a file, in order; counted from ``place``, which is that of a
    row, where it is given.

    TSV as DPR reads it: quoting as in ``dpr.formats.delimited``; in a quoted file all ``"`` around the text
    are stripped. A first row that names columns of ids and texts (``id``, ``docid``, ``pid``; ``text``,
    ``contents``, ``passage`` ...) is a header, there and wherever it is repeated, and says where they are,
    unless others than the default are given. There are no titles if ``title_col`` is negative or beyond the
    row. Empty texts are passed on. A .csv file without a tab in its first line is separated by commas. Names
    in .json/.jsonl and .parquet hold records: BEIR's ``_id``, ``title``, ``text``, or other tools' names for
    these (``dpr.formats.column_names``). Plain or gzip. An id has at most MAX_ID_BYTES bytes, prefix
    included.

    Raises:
        InputError: names the file and line.
    """
    file = user_path(path)
    rows = (
        _record_rows(file, start, place)
        if has_records(file)
        else _tsv_rows(file, (id_col, text_col, title_col), place)
    )
    for line, key, text, title, origin in islice(rows, start, stop):
        whole = id_prefix + key
        if 4 * len(whole) > MAX_ID_BYTES and (size := len(whole.encode(errors="replace"))) > MAX_ID_BYTES:
            raise InputError(
                f"a passage id of {size} bytes", file=file, line=line, expected=f"at most {MAX_ID_BYTES}"
            )
        yield Passage(text, title, whole, origin=origin)


def check_unique_ids(path: str | Path, *, id_col: int = 0, text_col: int = 1, title_col: int = 2) -> int:
    """Checks that no id occurs twice, and returns the number of passages. Memory does not grow with the
    corpus.

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
    return InputError(
        f"passage id {key!r} is already used at line {first_line}",
        file=file,
        line=line,
        expected="unique ids",
    )


def write_passages(path: str | Path, passages: Iterable[Passage]) -> int:
    """Writes a corpus, TSV with header or, for names in .json/.jsonl, BEIR's JSON lines; ``.gz`` is packed.
    Returns how many.

    Where a passage was taken from is written in JSON lines only, into BEIR's object ``metadata``.

    Raises:
        InputError: a passage that would not be read back the same (no id; in TSV also one like the header, or
        with quotes around the text).
    """
    file = user_path(path)
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
                reason = (
                    "column names, quotes around a text, and carriage returns do not survive in a"
                    " passages TSV"
                )
                raise InputError(
                    f"passage {passage.id!r} cannot be written: {reason}",
                    file=file,
                    hint="write .jsonl instead",
                )
            require_readable(row, file)
            writer.writerow(row)
    return count


def require_word(value: str, file: Path, *, hint: str | None = None) -> None:
    """Refuses an id that columns separated by spaces or tabs cannot hold."""
    if value.split() != [value]:
        raise InputError(
            f"the id {value!r} is empty or holds white space, which this format cannot hold",
            file=file,
            hint=hint,
        )


@contextmanager
def durable_text(path: Path, *, note: Mapping[str, Any] | None = None) -> Iterator[IO[str]]:
    """A durable UTF-8 text file; ``.gz`` is packed (without a time stamp, so that equal content gives equal
    bytes)."""
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
        raise InputError(
            f"half a character ({error.object[error.start]!a}) cannot be written as UTF-8", file=path
        ) from None


def has_records(path: Path) -> bool:
    """Whether a corpus of this name holds records with named fields: JSON or Parquet, not TSV."""
    return is_json_name(path) or path.suffix.lower() == ".parquet"


def read_records(path: Path, place: LinePlace | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line and value of every record of such a file, in the order of its passages; of JSON lines, from
    ``place`` on."""
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
            key = first_id(value, PASSAGE_IDS)
        yield line, key


def corpus_form(path: Path) -> TableForm:
    """The form of a corpus that is a table; in a .csv file commas may separate columns."""
    return table_form(path, commas=is_csv_name(path))


def _tsv_rows(path: Path, columns: Columns, place: LinePlace | None) -> Iterator[_Row]:
    """Every data row."""
    form = corpus_form(path)
    columns, header = _columns(form, columns, path)
    id_col, text_col, title_col = columns
    width, least = form.width, max(id_col, text_col) + 1
    has_titles = 0 <= title_col < width
    for line, row in table_rows(path, form, place):
        if len(row) != width or width < least:
            if width < least:
                raise wrong_columns(path, line, row, form, f"at least {least}")
            raise wrong_columns(
                path,
                line,
                row,
                form,
                f"{width}, as in the first row",
                hint="check the quotes above this line",
            )
        key = row[id_col]
        if row == header:  # headers stand in the middle of files that were joined
            continue
        if not key:
            raise InputError("empty passage id", file=path, line=line, expected=f"an id in column {id_col}")
        text = row[text_col]
        # Quotes that are left around the text of a quoted file go, as in DPR.
        yield (
            line,
            key,
            text if form.is_quoted is False else text.strip('"'),
            row[title_col] if has_titles else "",
            None,
        )


def _columns(form: TableForm, columns: Columns, path: Path) -> tuple[Columns, list[str] | None]:
    """The columns, as a header names them if ``columns`` are the default; and the first row if it is a
    header."""
    if not form.rows:
        return columns, None
    line, first = form.rows[0]
    if columns == DEFAULT_COLUMNS:
        named = named_columns(first, _NAMES, {"titles": TITLES}, file=path, line=line)
        if named is None:
            require_known_names(form.rows, _NAMES, file=path)
            return columns, None
        return (named["ids"], named["texts"], named.get("titles", -1)), first
    names = [normal_name(name) for name in first]
    id_col, text_col, _ = columns
    if not are_names(first) or len(names) <= max(id_col, text_col) or names[id_col] not in _NAMES["ids"]:
        return columns, None
    if names[text_col] not in (*_NAMES["texts"], *TITLES):
        warn_of_header(path, line, first)
    return columns, first


def _record_rows(path: Path, start: int, place: LinePlace | None) -> Iterator[_Row]:
    """Every record; before ``start`` only ids are checked."""
    for index, (line, value) in enumerate(read_records(path, place)):
        with located(path, line):
            key, text, title, origin = first_id(value, PASSAGE_IDS), "", "", None
            if index >= start:
                title, text = title_in(value), checked_text(value, require_name(value, PASSAGE_TEXTS, "text"))
                origin = origin_of(value)
        yield line, key, text, title, origin


def first_id(value: Mapping[str, Any], names: Sequence[str], default: str | None = None) -> str:
    """The id under the first of ``names`` that the record has, as a string; ``default`` if there is none or
    it is null.

    Raises:
        ValueError: there is no usable id.
    """
    name = name_in(value, names)
    if default is not None and (not name or value[name] is None):
        return default
    name = name or require_name(value, names, "id")
    return id_of(value[name], name)
