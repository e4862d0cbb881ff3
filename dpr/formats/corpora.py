"""Passage collections: DPR's TSV (id, text, title), BEIR's ``corpus.jsonl`` and Parquet, read as a stream of
any length."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from dpr.core.errors import InputError
from dpr.core.paths import user_path
from dpr.core.records import MAX_ID_BYTES, Passage, json_value
from dpr.formats.delimited import are_names, named_columns, table_form, table_rows, wrong_columns
from dpr.formats.given_records import made_from
from dpr.formats.id_hashes import mapped_hashes, repeated_hashes
from dpr.formats.passage_records import field_of, origin_record, passage_in, passage_of
from dpr.formats.record_fields import PASSAGE_IDS, PASSAGE_TEXTS, QUESTION_IDS, QUESTIONS, TITLES, normal_name
from dpr.formats.record_files import has_records, is_csv_name, is_json_name, read_records
from dpr.formats.text_input import located
from dpr.formats.text_output import durable_text, write_json_lines

_HEADER = ("id", "text", "title")
# files of questions are looked up too
_NAMES = {
    "ids": (*PASSAGE_IDS, *QUESTION_IDS),
    "texts": (*PASSAGE_TEXTS, *QUESTIONS),
}
DEFAULT_COLUMNS = (0, 1, 2)  # columns of id, text and title, as in DPR
Columns = tuple[int, int, int]


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
    """Yields passages number ``start`` to ``stop`` of a file, in order.

    TSV is read as DPR reads it, quoted as in ``dpr.formats.delimited``; in a quoted file all ``"`` around the
    text are stripped. A first row that names columns of ids and texts (``id``, ``docid``, ``pid``; ``text``,
    ``contents``, ``passage`` ...) is a header, also where it is repeated. It sets the columns unless others
    than the default are given. There are no titles if ``title_col`` is negative or beyond the row. Empty
    texts are passed on. A .csv file without a tab in its first line is separated by commas. Files in
    .json/.jsonl and .parquet hold records: BEIR's ``_id``, ``title``, ``text``, or other tools' names for
    these (``dpr.formats.record_fields``). Files are plain or gzip. An id has at most MAX_ID_BYTES bytes, prefix
    included.

    Raises:
        InputError: names the file and line.
    """
    file = user_path(path)
    rows = passage_rows(file, (id_col, text_col, title_col))
    for line, passage, _ in islice(rows, start, stop):
        whole = f"{id_prefix}{passage.id}"
        size = len(whole.encode(errors="replace"))
        if size > MAX_ID_BYTES:
            raise InputError(
                f"a passage id of {size} bytes", file=file, line=line, expected=f"at most {MAX_ID_BYTES}"
            )
        yield replace(passage, id=whole) if id_prefix else passage


def given_passages(given: Any) -> Iterator[Passage]:
    """Returns the passages of a file, of a dictionary (texts or records by id), or of a list or table.

    Raises:
        InputError: a passage cannot be used.
    """
    if isinstance(given, str | Path):
        return read_passages(given)
    return made_from(given, "passage", passage_of)


def check_unique_ids(file: Path, columns: Columns = DEFAULT_COLUMNS) -> int:
    """Checks that no id occurs twice, and returns the number of passages.

    Raises:
        InputError: an id occurs twice (names it and its two lines).
    """
    # hash() is keyed at random per process, so no file can be made to collide on purpose.
    with TemporaryFile() as written:
        for _, passage, _ in passage_rows(file, columns):
            written.write(hash(passage.id).to_bytes(8, "little", signed=True))
        hashes = mapped_hashes(written)
        suspects = set(repeated_hashes(hashes).tolist())
    seen: dict[str, int] = {}
    for line, passage, _ in passage_rows(file, columns) if suspects else ():
        key = str(passage.id)
        if hash(key) % 2**64 in suspects and seen.setdefault(key, line) != line:
            raise InputError(
                f"passage id {key!r} is already used at line {seen[key]}",
                file=file,
                line=line,
                expected="unique ids",
            )
    return len(hashes)


def write_passages(path: str | Path, passages: Iterable[Passage]) -> int:
    """Writes a corpus: TSV with header or, for names in .json/.jsonl, BEIR's JSON lines; ``.gz`` is
    compressed. Returns the number of passages.

    The fields and the source of a passage are written only in JSON lines, into BEIR's object ``metadata``.

    Raises:
        InputError: a passage that would not be read back the same (no id; in TSV also one like the header, or
        with quotes around the text).
    """
    file = user_path(path)

    def with_ids() -> Iterator[Passage]:
        for passage in passages:
            if not passage.id:
                raise InputError(f"a passage without id cannot be written ({passage.text[:40]!r})", file=file)
            yield passage

    if is_json_name(file):
        return write_json_lines(file, map(record_of, with_ids()))
    count = 0
    with durable_text(file) as out:
        writer = csv.writer(out, delimiter="\t", lineterminator="\n")
        writer.writerow(_HEADER)
        for count, passage in enumerate(with_ids(), 1):  # noqa: B007
            row = (str(passage.id), passage.text, passage.title)
            if (
                row == _HEADER
                or passage.text != passage.text.strip('"')
                # a line of a text could be taken for a row
                or any("\r" in text or ("\t" in text and "\n" in text) for text in row)
            ):
                reason = (
                    "column names, quotes around a text, carriage returns, and tabs beside newlines do not survive"
                    " in a passages TSV"
                )
                found = f"passage {passage.id!r} cannot be written: {reason}"
                raise InputError(found, file=file, hint="write .jsonl instead")
            writer.writerow(row)
    return count


def record_of(passage: Passage) -> dict[str, Any]:
    """Returns the record of a passage in JSON lines."""
    record: dict[str, Any] = {"_id": passage.id, "title": passage.title, "text": passage.text}
    metadata = json_value(passage.metadata or {})
    if passage.origin and "file" not in metadata:
        metadata |= origin_record(passage.origin)
    if metadata:
        record["metadata"] = metadata
    return record


def passage_rows(path: Path, columns: Columns = DEFAULT_COLUMNS) -> Iterator[tuple[int, Passage, Any]]:
    """Yields line, passage, and the value of ``answers`` (of questions) of every row. ``columns`` of id, text
    and title are those of a table."""
    if has_records(path):
        for line, value in read_records(path):
            with located(path, line):
                passage = passage_in(value, _NAMES["ids"], _NAMES["texts"])
            yield line, passage, field_of(value, "answers")
        return
    form = table_form(path, commas=is_csv_name(path))
    header = None
    named = named_columns(form.first, _NAMES, {"titles": TITLES}, path)
    width = len(form.first)
    if columns == DEFAULT_COLUMNS and named is not None:
        header = form.first
        columns = named["ids"], named["texts"], named.get("titles", -1)
    elif columns != DEFAULT_COLUMNS and are_names(form.first) and columns[0] < width:
        header = form.first if normal_name(form.first[columns[0]]) in _NAMES["ids"] else None
    id_col, text_col, title_col = columns
    least = max(id_col, text_col) + 1
    for line, row in table_rows(path, form):
        if len(row) != width or width < least:
            expected = f"{width}, as in the first row" if width >= least else f"at least {least}"
            hint = "check the quotes above this line"
            raise wrong_columns(path, line, row, form, expected, hint=hint)
        if row == header:  # headers stand in the middle of files that were joined
            continue
        if not row[id_col]:
            raise InputError("empty passage id", file=path, line=line, expected=f"an id in column {id_col}")
        # Quotes that are left around the text of a quoted file go, as in DPR.
        text = row[text_col].strip('"') if form.is_quoted else row[text_col]
        yield line, Passage(text, row[title_col] if 0 <= title_col < width else "", row[id_col]), None
