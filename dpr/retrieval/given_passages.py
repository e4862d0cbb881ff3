"""Passages that are given from Python: a file, or texts, dictionaries, ``Passage`` or a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.paths import user_path
from dpr.core.records import MAX_ID_BYTES, Passage, rows_of
from dpr.formats.corpora import read_passages
from dpr.formats.passage_metadata import checked_field, fields_of, kind_of
from dpr.formats.passage_records import passage_of
from dpr.formats.record_files import has_records, read_records
from dpr.storage.untrusted import describe

Record = str | Mapping[str, Any] | Passage
Passages = str | Path | Iterable[Record]
Kinds = dict[str, str]
"""Kind of value of each field, empty if no search can filter by it."""


def records_of(
    passages: Passages, kinds: Kinds, *, known: int = 0
) -> Iterator[tuple[Passage, Mapping[str, Any]]]:
    """Yields passages with the records that they were made of. A passage without an id gets its number,
    counted from ``known``. ``kinds`` are those of the earlier passages' fields, as in ``given_items``.

    Raises:
        InputError: a passage cannot be used (says which, and why), or an id occurs twice.
    """
    seen: set[str] = set()
    for index, (where, record) in enumerate(given_items(passages, kinds)):
        try:
            passage = passage_of(record, str(known + index))
            key = str(passage.id)
            if len(key.encode(errors="replace")) > MAX_ID_BYTES or "\0" in key:
                raise ValueError(f"its id is longer than {MAX_ID_BYTES} bytes, or holds a NUL character")
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None
        if key in seen:
            raise InputError(f"{where}: the id {key!r} occurs twice", expected="unique ids")
        seen.add(key)
        yield passage, record if isinstance(record, Mapping) else {}


def given_items(passages: Passages, kinds: Kinds) -> Iterator[tuple[str, Record]]:
    """Yields each given item with the words for its place. A field has one kind of value, that of ``kinds``
    or of its first value, which is noted there; otherwise no search could filter by it.

    Raises:
        InputError: a value is of another kind (says which).
    """
    found: Iterator[tuple[str, Record]]
    if isinstance(passages, str | Path):
        file = user_path(passages)
        if not file.is_file():
            hint = "passages are a file, or a list of texts or records"
            raise InputError("there is no such file", file=str(passages)[:200], hint=hint)
        if has_records(file):
            found = ((f"{file}:{line}", record) for line, record in read_records(file))
        else:
            numbered = enumerate(read_passages(file), 1)
            found = ((f"{file}, passage {number}", passage) for number, passage in numbered)
    else:
        rows = rows_of(passages)
        if isinstance(rows, Mapping | Passage) or not isinstance(rows, Iterable):
            expected = "a file, or a list of texts, dictionaries with 'text', or Passage, or a table"
            raise InputError(f"passages is {describe(passages)}", expected=expected)
        found = ((f"passage {index}", record) for index, record in enumerate(rows))
    for where, record in found:
        for name, value in fields_of(record).items() if isinstance(record, Mapping) else ():
            if value is not None and (kind := kinds.setdefault(name, kind_of(value))):
                try:
                    checked_field(name, kind, value)
                except ValueError as error:
                    raise InputError(f"{where}: {error}") from None
        yield where, record
