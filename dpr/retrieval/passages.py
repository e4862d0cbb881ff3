"""Passages to search: those given from Python (a file, or texts, dictionaries, ``Passage`` or a table); titles and
texts of retrieved ones, read from the corpus files without holding the corpus in memory; and the fields by which
a search can be filtered."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpr.core.errors import InputError
from dpr.core.paths import user_path
from dpr.core.records import MAX_ID_BYTES, Passage, rows_of
from dpr.embedding.source import LARGE_BYTES, PassageSource, StoredSource, with_store
from dpr.formats.corpora import read_passages
from dpr.formats.passage_metadata import KINDS, kind_of, value_of
from dpr.formats.passage_records import fields_of, passage_of
from dpr.formats.record_files import has_records, read_records
from dpr.indexer.ranking import encode_ids, is_among
from dpr.indexer.registry import IndexTexts
from dpr.storage.untrusted import describe

_MOST_CHOICES = 100
_LONGEST_CHOICE = 200  # characters
Record = str | Mapping[str, Any] | Passage
Passages = str | Path | Iterable[Record]
Kinds = dict[str, str]
"""Kind of value of each field, empty if no search can filter by it."""


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


class PassageFields:
    """Values of some fields of every passage, 4 bytes each, compared with conditions on several fields at once. A
    list is a value of its own."""

    def __init__(self, kinds: Mapping[str, str], passages: Iterable[Passage]) -> None:
        """Takes the fields ``kinds``, name -> kind of a single value, of passages.

        Raises:
            InputError: a value is of another kind.
        """
        self._kinds = dict(kinds)
        self._values: dict[str, dict[tuple[Any, ...], int]] = {name: {} for name in kinds}
        self._ids = np.empty(0, dtype="S1")
        self._codes = {name: np.empty(0, dtype=np.int32) for name in kinds}
        self.change((), passages)

    def change(self, gone: Iterable[Passage], added: Iterable[Passage]) -> None:
        """Removes passages, then adds passages. Raises as the constructor."""
        ids = []
        codes = {name: array("i") for name in self._kinds}
        for passage in added:
            ids.append(str(passage.id))
            stated = passage.metadata or {}
            for name, kind in self._kinds.items():
                try:
                    value = value_of(name, kind, stated.get(name, getattr(passage, name, None)))
                except ValueError as error:
                    raise InputError(f"passage {passage.id!r}: {error}") from None
                known = self._values[name]
                values = value if isinstance(value, tuple) else (value,)
                codes[name].append(-1 if value is None else known.setdefault(values, len(known)))
        is_kept = ~is_among(self._ids, encode_ids(sorted(str(passage.id) for passage in gone)))
        self._ids = np.concatenate([self._ids[is_kept], encode_ids(ids)])
        for name, new in codes.items():
            self._codes[name] = np.concatenate([self._codes[name][is_kept], np.array(new, dtype=np.int32)])

    def matching(self, wanted: Mapping[str, Any]) -> np.ndarray:
        """Returns the ids (n,), ascending and distinct, of the passages whose fields meet these conditions
        (``checked_condition``).

        Raises:
            InputError: a field is not known, or a value is of another kind.
        """
        is_chosen = np.ones(len(self._ids), dtype=bool)
        for name, given in wanted.items():
            if name not in self._kinds:
                known = ", ".join(self._kinds) or "none; dpr serve metadata=<name> names fields"
                raise InputError(f"there is no field {name[:100]!r} to filter by", expected=known)
            condition = checked_condition(name, self._kinds[name], given)
            known_values = self._values[name]
            if not known_values and len(self._ids):
                raise InputError(
                    f"no passage has a value in the field {name[:100]!r}", expected="a field of the passages"
                )
            # the last one is that of the code -1
            is_met = np.array([_meets(values, condition) for values in [*known_values, ()]])
            is_chosen &= is_met[self._codes[name]]
        return np.unique(self._ids[is_chosen])

    def choices(self) -> dict[str, list[Any] | None]:
        """Returns the values of every field, ascending, if they are few and short enough to choose from a
        list, else None."""
        shown: dict[str, list[Any] | None] = {}
        for name, known in self._values.items():
            values = {value for listed in known for value in listed if value is not None}
            is_short = len(values) <= _MOST_CHOICES and all(
                len(str(value)) <= _LONGEST_CHOICE for value in values
            )
            shown[name] = sorted(values) if is_short else None
        return shown


def _compares(compare: Callable[[Any, Any], bool]) -> Callable[[tuple[Any, ...], Any], bool]:
    return lambda values, bounds: any(compare(value, bound) for value in values for bound in bounds)


_OPERATORS: dict[str, Callable[[tuple[Any, ...], Any], bool]] = {
    "gt": _compares(operator.gt),
    "gte": _compares(operator.ge),
    "lt": _compares(operator.lt),
    "lte": _compares(operator.le),
    "any": lambda values, wanted: not wanted.isdisjoint(values),
    "all": lambda values, wanted: wanted.issubset(values),
    "not": lambda values, condition: not _meets(values, condition),
}


def checked_condition(name: str, kind: str, wanted: Any) -> Any:
    """Returns a condition on a field in the form that is tested: a value or a list asks for any of these values, a
    dictionary for all of its operators.

    Raises:
        InputError: an operator is not known, or a value is of another kind than the field.
    """
    if isinstance(wanted, Mapping):
        if not wanted or not wanted.keys() <= _OPERATORS.keys():
            found = f"filter by {name}={str(dict(wanted))[:100]}"
            raise InputError(found, expected=f"the operators {', '.join(_OPERATORS)}")
        return {
            key: checked_condition(name, kind, value if key == "not" or isinstance(value, list) else [value])
            for key, value in wanted.items()
        }
    listed = wanted if isinstance(wanted, list) else [wanted]
    for value in listed:
        if not isinstance(value, KINDS[kind]) or isinstance(value, bool) != (kind == "bool"):
            raise InputError(f"filter by {name}={str(value)[:100]!r}", expected=kind)
    return frozenset(listed)


def _meets(values: tuple[Any, ...], condition: Any) -> bool:
    """Returns whether the values of a passage in a field, none or several, meet a condition."""
    if isinstance(condition, frozenset):
        return not condition.isdisjoint(values)
    return all(_OPERATORS[key](values, operand) for key, operand in condition.items())


class Change(NamedTuple):
    """Passages that go and passages that come, one after the other, with the vectors (n, D) of the latter."""

    gone: Sequence[Passage]
    added: Sequence[Passage]
    vectors: np.ndarray | None


def note_kinds(kinds: Kinds, passages: Iterable[Passage]) -> None:
    """Adds the kinds of the fields of passages to those that are known."""
    for passage in passages:
        for name, value in (passage.metadata or {}).items():
            if value is not None and (kind := kind_of(value)):
                kinds.setdefault(name, kind)


def passages_of(passages: Passages, kinds: Kinds, *, known: int | None = 0) -> Iterator[Passage]:
    """Yields passages with their fields. A passage without an id gets its number, counted from ``known``, or is
    refused if that is None. ``kinds`` are those of the earlier passages' fields, as in ``given_items``.

    Raises:
        InputError: a passage cannot be used (says which, and why), or an id occurs twice.
    """
    seen: set[str] = set()
    for index, (where, record) in enumerate(given_items(passages, kinds)):
        try:
            passage = passage_of(record, "" if known is None else str(known + index))
            key = str(passage.id)
            if not key:
                raise ValueError("it has no id, and passages are replaced by their ids")
            if len(key.encode(errors="replace")) > MAX_ID_BYTES or "\0" in key:
                raise ValueError(f"its id is longer than {MAX_ID_BYTES} bytes, or holds a NUL character")
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None
        if key in seen:
            raise InputError(f"{where}: the id {key!r} occurs twice", expected="unique ids")
        seen.add(key)
        yield passage


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
        stated = record.metadata if isinstance(record, Passage) else None
        for name, value in (fields_of(record) if isinstance(record, Mapping) else stated or {}).items():
            if value is not None and (kind := kinds.setdefault(name, kind_of(value))):
                try:
                    value_of(name, kind, value)
                except ValueError as error:
                    raise InputError(f"{where}: {error}") from None
        yield where, record
