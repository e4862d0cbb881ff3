"""Passage collections: DPR's TSV (id, text, title), BEIR's ``corpus.jsonl`` and Parquet, read as a stream of
any length."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.paths import user_path
from dpr.core.records import MAX_ID_BYTES, Origin, Passage
from dpr.formats.delimited import (
    PASSAGE_IDS,
    PASSAGE_TEXTS,
    QUESTION_IDS,
    QUESTIONS,
    TITLES,
    are_names,
    name_in,
    named_columns,
    normal_name,
    require_name,
    table_form,
    table_rows,
    wrong_columns,
)
from dpr.formats.id_hashes import repeated_hashes
from dpr.formats.json_records import is_finite_number, iter_json_objects
from dpr.formats.text_input import has_lone_surrogate, located
from dpr.formats.training_records import id_of, string_of, title_in
from dpr.storage.durable import durable_file
from dpr.storage.untrusted import describe

KINDS: dict[str, tuple[type, ...]] = {"text": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}
"""Types of a field of metadata."""
_LARGEST_INT = 2**63 - 1
_HEADER = ("id", "text", "title")
_WEB_ADDRESS = re.compile(r"https?://[^\s/?#\[][^\s]*", re.IGNORECASE)
# files of questions are looked up too
_NAMES = {
    "ids": (*PASSAGE_IDS, *QUESTION_IDS),
    "texts": (*PASSAGE_TEXTS, *QUESTIONS),
}
DEFAULT_COLUMNS = (0, 1, 2)  # columns of id, text and title, as in DPR
Columns = tuple[int, int, int]


def is_json_name(path: str | Path) -> bool:
    """True if a file name is that of JSON, with or without ``.gz``."""
    return str(path).lower().removesuffix(".gz").endswith((".jsonl", ".json", ".ndjson"))


def is_csv_name(path: Path) -> bool:
    """True if commas may separate the columns of a file of this name, with or without ``.gz``."""
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
) -> Iterator[Passage]:
    """Yields passages number ``start`` to ``stop`` of a file, in order.

    TSV is read as DPR reads it, quoted as in ``dpr.formats.delimited``; in a quoted file all ``"`` around the
    text are stripped. A first row that names columns of ids and texts (``id``, ``docid``, ``pid``; ``text``,
    ``contents``, ``passage`` ...) is a header, also where it is repeated. It sets the columns unless others
    than the default are given. There are no titles if ``title_col`` is negative or beyond the row. Empty
    texts are passed on. A .csv file without a tab in its first line is separated by commas. Files in
    .json/.jsonl and .parquet hold records: BEIR's ``_id``, ``title``, ``text``, or other tools' names for
    these (``dpr.formats.delimited``). Files are plain or gzip. An id has at most MAX_ID_BYTES bytes, prefix
    included.

    Raises:
        InputError: names the file and line.
    """
    file = user_path(path)
    rows = passage_rows(file, (id_col, text_col, title_col))
    for line, passage, _ in islice(rows, start, stop):
        whole = f"{id_prefix}{passage.id}"
        if 4 * len(whole) > MAX_ID_BYTES and (size := len(whole.encode(errors="replace"))) > MAX_ID_BYTES:
            raise InputError(
                f"a passage id of {size} bytes", file=file, line=line, expected=f"at most {MAX_ID_BYTES}"
            )
        yield replace(passage, id=whole) if id_prefix else passage


def check_unique_ids(file: Path, columns: Columns = DEFAULT_COLUMNS) -> int:
    """Checks that no id occurs twice, and returns the number of passages. Holds 8 bytes of each in memory.

    Raises:
        InputError: an id occurs twice (names it and its two lines).
    """
    # hash() is keyed at random per process, so no file can be made to collide on purpose.
    hashes = np.fromiter((hash(passage.id) for _, passage, _ in passage_rows(file, columns)), dtype=np.int64)
    suspects = set(repeated_hashes(hashes).tolist())
    seen: dict[str, int] = {}
    for line, passage, _ in passage_rows(file, columns) if suspects else ():
        key = str(passage.id)
        if hash(key) in suspects and seen.setdefault(key, line) != line:
            raise InputError(
                f"passage id {key!r} is already used at line {seen[key]}",
                file=file,
                line=line,
                expected="unique ids",
            )
    return len(hashes)


def write_passages(path: str | Path, passages: Iterable[Passage]) -> int:
    """Writes a corpus: TSV with header or, for names in .json/.jsonl, BEIR's JSON lines; ``.gz`` is packed.
    Returns the number of passages.

    The source of a passage is written only in JSON lines, into BEIR's object ``metadata``.

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


def require_word(value: str, file: Path) -> None:
    """Refuses an id that columns separated by spaces or tabs cannot hold."""
    if value.split() != [value]:
        found = f"the id {value!r} is empty or holds white space, which this format cannot hold"
        raise InputError(found, file=file)


@contextmanager
def durable_text(path: Path, *, note: Mapping[str, Any] | None = None) -> Iterator[IO[str]]:
    """Opens a durable UTF-8 text file; ``.gz`` is packed, without a time stamp, so that equal content gives
    equal bytes."""
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
    """True if a corpus of this name holds records with named fields (JSON, Parquet or Arrow) and is not a
    table."""
    return is_json_name(path) or path.suffix.lower() in (".parquet", ".arrow") or path.is_dir()


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Returns line and value of every record of such a file, in the order of its passages."""
    if is_json_name(path):
        return iter_json_objects(path)
    from dpr.formats.arrow_files import arrow_rows  # for this format alone

    return ((number, value) for _, number, value in arrow_rows(path))


def passage_rows(path: Path, columns: Columns = DEFAULT_COLUMNS) -> Iterator[tuple[int, Passage, Any]]:
    """Yields line, passage, and the value of ``answers`` (of questions) of every row. ``columns`` of id, text
    and title are those of a table."""
    if has_records(path):
        for line, value in read_records(path):
            with located(path, line):
                key = first_id(value, _NAMES["ids"])
                name = require_name(value, _NAMES["texts"], "text")
                passage = Passage(string_of(value[name], name), title_in(value), key, origin=origin_of(value))
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


def passage_of(record: Any, number: str = "") -> Passage:
    """Returns the passage in a text, a dictionary or a Passage, with the id ``number`` if it has none.

    Raises:
        ValueError: it is none of these, or a value of the dictionary cannot be used.
    """
    if isinstance(record, Passage):
        return record if record.id else replace(record, id=number)
    if isinstance(record, str):
        return Passage(string_of(record, "text"), "", number)
    if not isinstance(record, Mapping):
        raise ValueError(f"{describe(record)}, expected a text, a dictionary with 'text', or a Passage")
    name = require_name(record, PASSAGE_TEXTS, "text")
    text = string_of(record[name], name)
    return Passage(text, title_in(record), first_id(record, PASSAGE_IDS, number), origin=origin_of(record))


def first_id(value: Mapping[str, Any], names: Sequence[str], default: str | None = None) -> str:
    """Returns the id under the first of ``names`` that the record has, as a string; ``default`` if there is
    none or it is null.

    Raises:
        ValueError: there is no usable id.
    """
    name = name_in(value, names)
    if default is not None and (not name or value[name] is None):
        return default
    name = name or require_name(value, names, "id")
    return id_of(value[name], name)


def field_of(record: Mapping[str, Any], name: str) -> Any:
    """Returns a field of a record, or of BEIR's object ``metadata`` in it; None if neither has it."""
    value = record.get(name)
    inner = record.get("metadata")
    return inner.get(name) if value is None and isinstance(inner, Mapping) else value


def origin_of(record: Mapping[str, Any]) -> Origin | None:
    """Returns the source of a passage, from ``file``, ``heading``, ``line`` and ``url`` of its record.
    Returns None if the record names neither file nor address. Values of other types count as absent."""
    if not record.get("metadata") and "file" not in record and "url" not in record:
        return None  # the most common record, said at once

    def text(name: str) -> str:
        value = field_of(record, name)
        return value if isinstance(value, str) and not has_lone_surrogate(value) else ""

    file = text("file")
    url = text("url")
    if not _WEB_ADDRESS.fullmatch(url) or not url.isprintable():
        url = ""
    if not file and not url:
        return None
    line = field_of(record, "line")
    return Origin(file, text("heading"), line if type(line) is int and 0 <= line < 2**63 else None, url)


def origin_record(origin: Origin) -> dict[str, Any]:
    """Returns the object ``metadata`` that ``origin_of`` reads back."""
    record: dict[str, Any] = {}
    if origin.file:
        record = {"file": origin.file, "heading": origin.heading, "line": origin.line}
    if origin.url:
        record["url"] = origin.url
    return record


def read_metadata(path: Path, kinds: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    """Yields the values of the fields ``kinds`` (name -> kind) for every passage of a corpus, in order; None
    for a field that a record does not have.

    Raises:
        InputError: the corpus has no named fields, or a value is of another kind (file and line).
    """
    if not has_records(path):
        raise InputError(
            "has no fields besides id, title and text",
            file=path,
            expected=f"a corpus with {', '.join(kinds)}",
            hint="write the corpus as .jsonl or .parquet, or leave metadata out",
        )
    for line, value in read_records(path):
        with located(path, line):
            yield tuple(checked_field(name, kind, field_of(value, name)) for name, kind in kinds.items())


def fields_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a passage's record besides id, title and text, including those of BEIR's object
    ``metadata``."""
    read = {name_in(record, names) for names in (PASSAGE_IDS, PASSAGE_TEXTS, TITLES)}
    read |= {"_id", "id", "title", "text", "metadata"}
    found = {name: value for name, value in record.items() if name not in read}
    if isinstance(inner := record.get("metadata"), Mapping):
        found |= inner
    return found


def kind_of(value: Any) -> str:
    """Returns the kind of field that a value is compared as; empty for one that cannot be compared."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "int" if isinstance(value, int) and abs(value) > 2**53 else "float"
    return "text" if isinstance(value, str) else ""


def checked_field(name: str, kind: str, value: Any) -> Any:
    """Returns a value as it is compared. Raises ValueError if it is of another kind."""
    if value is None:
        return None
    is_kind = isinstance(value, KINDS[kind]) and isinstance(value, bool) == (kind == "bool")
    if is_kind and kind == "text":
        is_kind = not has_lone_surrogate(value)
    elif is_kind and kind != "bool":
        is_kind = is_finite_number(value) and (kind == "float" or abs(value) <= _LARGEST_INT)
    if not is_kind:
        raise ValueError(
            f"{name} is {describe(value)}, expected {kind}, the kind of the passages before it or of"
            f" metadata=[{name}:<kind>], which takes {', '.join(KINDS)}"
        )
    return float(value) if kind == "float" else value
