"""Passages to search: those given from Python (a file, or texts, dictionaries, ``Passage`` or a table), and titles
and texts of retrieved ones, read from the corpus files without holding the corpus in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.paths import user_path
from dpr.core.records import MAX_ID_BYTES, Passage, rows_of
from dpr.embedding.source import LARGE_BYTES, PassageSource, StoredSource, with_store
from dpr.formats.corpora import given_passages, passage_rows
from dpr.formats.passage_metadata import kind_of, value_of
from dpr.formats.passage_records import passage_of
from dpr.formats.record_fields import PASSAGE_TEXTS, name_in
from dpr.formats.record_files import has_records, read_records
from dpr.indexer.registry import IndexTexts
from dpr.storage.untrusted import describe

Record = str | Mapping[str, Any] | Passage
Passages = str | Path | Iterable[Record]
Kinds = dict[str, str]
"""Kind of value of each field that a search can filter by."""


def find_passages(sources: Sequence[PassageSource], ids: Collection[str]) -> dict[str, Passage]:
    """Returns the passages with these ids; ids that no source has are left out. Reads small files at most
    once, up to the last passage wanted."""
    wanted = set(ids)
    passages_by_id: dict[str, Passage] = {}
    for source in map(with_store, sources if wanted else ()):
        if isinstance(source, StoredSource):
            passages_by_id |= source.find(wanted)
        else:
            for passage in source.read():
                if passage.id in wanted:
                    passages_by_id[passage.id] = passage
                    wanted.remove(passage.id)
                    if not wanted:
                        break
        wanted -= passages_by_id.keys()
        if not wanted:
            break
    return passages_by_id


def require_passages(sources: Sequence[PassageSource], ids: Collection[str]) -> dict[str, Passage]:
    """Returns passages as ``find_passages`` does, for ``ids`` that must all exist.

    Raises:
        InputError: names a missing id and the files searched.
    """
    passages = find_passages(sources, ids)
    missing = sorted(set(ids) - passages.keys())
    if missing:
        raise InputError(
            f"{len(missing)} retrieved passages are not in the corpus, the first is {missing[0]!r}",
            file=", ".join(str(source.file) for source in sources),
            hint="ctx_datasets must name the files the vectors were made from, with the same id_prefix",
        )
    return passages


def lexical_texts(sources: Sequence[PassageSource]) -> IndexTexts:
    """Returns the ids of all passages, and a stream of their titles and texts in the same order. Reads the
    files twice."""
    ids = (str(passage.id) for source in sources for passage in source.read())
    return IndexTexts(
        ids, (f"{passage.title} {passage.text}" for source in sources for passage in source.read())
    )


class PassageLookup:
    """Repeated look-up of passages. Small corpora are held in memory, large ones are read from disk. Several
    threads may use it."""

    def __init__(self, sources: Sequence[PassageSource], *, in_memory_bytes: int = LARGE_BYTES) -> None:
        self._sources = list(sources)
        self._held: dict[str, Passage] | None = None
        if sum(source.file.stat().st_size for source in self._sources) <= in_memory_bytes:
            self._held = {str(passage.id): passage for source in self._sources for passage in source.read()}
        else:
            self._sources = [with_store(source, least_bytes=0) for source in self._sources]

    def get(self, ids: Iterable[str]) -> dict[str, Passage]:
        """Returns the passages with these ids; missing ones are left out."""
        if self._held is None:
            return find_passages(self._sources, set(ids))
        return {passage_id: self._held[passage_id] for passage_id in ids if passage_id in self._held}

    def __iter__(self) -> Iterator[Passage]:
        if self._held is not None:
            return iter(self._held.values())
        return (passage for source in self._sources for passage in source.read())


def note_kinds(kinds: Kinds, passages: Iterable[Passage]) -> None:
    """Adds the kinds of the fields of passages to those that are known."""
    for passage in passages:
        for name, value in (passage.metadata or {}).items():
            if kind := kind_of(value):
                kinds.setdefault(name, kind)


def passages_of(passages: Passages, kinds: Kinds, *, known: int | None = 0) -> Iterator[Passage]:
    """Yields passages with their fields. A passage without an id gets its number, counted from ``known``, or is
    refused if that is None. ``kinds`` are those of the earlier passages' fields, as in ``given_items``.

    Raises:
        InputError: a passage cannot be used (says which, and why), or an id occurs twice.
    """
    seen: set[str] = set()
    for where, passage in given_items(passages, kinds, known=known):
        key = str(passage.id)
        if not key:
            raise InputError(f"{where}: it has no id, and passages are replaced by their ids")
        if len(key.encode(errors="replace")) > MAX_ID_BYTES or "\0" in key:
            raise InputError(f"{where}: its id is longer than {MAX_ID_BYTES} bytes, or holds a NUL character")
        if key in seen:
            raise InputError(f"{where}: the id {key!r} occurs twice", expected="unique ids")
        seen.add(key)
        yield passage


def given_items(
    passages: Passages, kinds: Kinds, *, known: int | None = None
) -> Iterator[tuple[str, Passage]]:
    """Yields each passage with the words for its place. One without an id gets its number, counted from
    ``known``. A field has one kind of value, that of ``kinds`` or of its first value, which is noted there;
    otherwise no search could filter by it.

    Raises:
        InputError: a passage cannot be used, a value is of another kind (says which), or there is no passage.
    """
    found: Iterator[tuple[str, Record]]
    file = None
    if isinstance(passages, str | Path):
        file = user_path(passages)
        if not file.is_file():
            hint = "passages are a file, or a list of texts or records"
            raise InputError("there is no such file", file=str(passages)[:200], hint=hint)
        if has_records(file):
            found = ((f"{file}:{line}", record) for line, record in read_records(file))
        else:
            found = ((f"{file}:{line}", passage) for line, passage, _ in passage_rows(file))
    else:
        rows = rows_of(passages)
        if isinstance(rows, Mapping) and not name_in(rows, PASSAGE_TEXTS):
            rows = given_passages(rows)
        if isinstance(rows, Mapping | Passage) or not isinstance(rows, Iterable):
            expected = "a file, or a list of texts, dictionaries with 'text', or Passage, or a table"
            raise InputError(f"passages is {describe(passages)}", expected=expected)
        found = ((f"passage {index}", record) for index, record in enumerate(rows))
    where = ""
    for index, (where, record) in enumerate(found):
        try:
            passage = passage_of(record, "" if known is None else str(known + index))
            for name, value in (passage.metadata or {}).items():
                if kind := kinds.get(name) or kind_of(value):
                    kinds[name] = kind
                    value_of(name, kind, value)
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None
        yield where, passage
    if not where:
        raise InputError("there are no passages", file=file)
