"""Passages to search: those given from Python (a file, or texts, dictionaries, ``Passage`` or a table); titles and
texts of retrieved ones, read from the corpus files without holding the corpus in memory; and the fields by which
a search can be filtered."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.paths import user_path
from dpr.core.records import MAX_ID_BYTES, Passage, rows_of
from dpr.embedding.source import LARGE_BYTES, PassageSource, StoredSource, with_store
from dpr.formats.corpora import read_passages
from dpr.formats.passage_metadata import KINDS, checked_field, kind_of, read_metadata
from dpr.formats.passage_records import fields_of, passage_of
from dpr.formats.record_files import has_records, read_records
from dpr.indexer.ranking import encode_ids, is_among
from dpr.indexer.registry import IndexTexts
from dpr.storage.untrusted import describe

_COMPARISONS = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
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


class PassageFields:
    """Values of some fields of every passage, 4 bytes each, compared with conditions on several fields at
    once. A list is a value of its own."""

    def __init__(self, ids: np.ndarray, kinds: Mapping[str, str], rows: Iterable[tuple[Any, ...]]) -> None:
        """Takes the passages ``ids`` (N,), fixed-width bytes, and a row of values for each, in the order of
        ``kinds``."""
        self._ids = np.empty(0, dtype="S1")
        self._kinds = dict(kinds)
        self._values: dict[str, dict[Any, int]] = {name: {} for name in kinds}
        self._codes = {name: np.empty(0, dtype=np.int32) for name in kinds}
        self.add(ids, rows)

    def add(self, ids: np.ndarray, rows: Iterable[tuple[Any, ...]]) -> None:
        """Adds passages, in the form that the constructor takes."""
        codes = {name: np.full(len(ids), -1, dtype=np.int32) for name in self._kinds}
        for index, row in enumerate(rows):
            for name, value in zip(self._kinds, row, strict=True):
                if value is not None:
                    known = self._values[name]
                    codes[name][index] = known.setdefault(value, len(known))
        self._ids = np.concatenate([self._ids, ids])
        self._codes = {name: np.concatenate([self._codes[name], codes[name]]) for name in codes}

    def remove(self, ids: np.ndarray) -> None:
        """Removes the passages with these ids (n,), ascending and distinct."""
        is_kept = ~is_among(self._ids, ids)
        self._ids = self._ids[is_kept]
        self._codes = {name: codes[is_kept] for name, codes in self._codes.items()}

    @classmethod
    def read(cls, sources: Sequence[PassageSource], kinds: Mapping[str, str]) -> PassageFields:
        """Reads the fields ``kinds``, name -> kind, of all corpora.

        Raises:
            InputError: a corpus has no named fields, or a value is of another kind.
        """
        if not kinds:
            return cls(np.empty(0, dtype="S1"), kinds, ())
        ids = encode_ids([str(passage.id) for source in sources for passage in source.read()])
        return cls(ids, kinds, (row for source in sources for row in read_metadata(source.file, kinds)))

    def matching(self, wanted: Mapping[str, Any]) -> np.ndarray:
        """Returns the ids (n,), ascending and distinct, of the passages whose fields meet these conditions
        (``condition``).

        Raises:
            InputError: a field is not known, or a value is of another kind.
        """
        is_chosen = np.ones(len(self._ids), dtype=bool)
        for name, given in wanted.items():
            if name not in self._kinds:
                known = ", ".join(self._kinds) or "none; dpr serve metadata=<name> names fields"
                raise InputError(f"there is no field {name[:100]!r} to filter by", expected=known)
            is_met = condition(name, self._kinds[name], given)
            values = self._values[name]
            if not values and len(self._ids):
                raise InputError(
                    f"no passage has a value in the field {name[:100]!r}", expected="a field of the passages"
                )
            listed = (value if isinstance(value, tuple) else (value,) for value in values)
            met = np.array([*map(is_met, listed), is_met(())])  # the last one is that of the code -1
            is_chosen &= met[self._codes[name]]
        return np.unique(self._ids[is_chosen])

    def choices(self) -> dict[str, list[Any] | None]:
        """Returns the values of every field, ascending, if they are few and short enough to choose from a
        list, else None."""
        shown: dict[str, list[Any] | None] = {}
        for name, known in self._values.items():
            values = {item for value in known for item in (value if isinstance(value, tuple) else (value,))}
            values.discard(None)
            is_short = len(values) <= _MOST_CHOICES and all(
                len(str(value)) <= _LONGEST_CHOICE for value in values
            )
            shown[name] = sorted(values) if is_short else None
        return shown


def condition(name: str, kind: str, wanted: Any) -> Callable[[tuple[Any, ...]], bool]:
    """Returns a test of the values that a passage has in a field: one, those of its list, or none.

    A value asks for itself, a list for any of its values, a dictionary for all of its operators: ``gt``,
    ``gte``, ``lt`` and ``lte`` compare, ``any`` and ``all`` take a list, ``not`` takes any condition.

    Raises:
        InputError: an operator is not known, or a value is of another kind than the field.
    """
    if not isinstance(wanted, Mapping):
        listed = wanted if isinstance(wanted, list) else [wanted]
        for value in listed:
            if not isinstance(value, KINDS[kind]) or isinstance(value, bool) != (kind == "bool"):
                raise InputError(f"filter by {name}={str(value)[:100]!r}", expected=kind)
        accepted = set(listed)
        return lambda values: not accepted.isdisjoint(values)
    tests = []
    for key, operand in wanted.items():
        inner = condition(name, kind, operand) if key not in ("any", "all") or isinstance(operand, list) else None
        if inner is None or (key in _COMPARISONS and isinstance(operand, list | Mapping)):
            expected = "a list" if inner is None else "a single value"
            raise InputError(f"filter by {name}: {key}={str(operand)[:100]!r}", expected=expected)
        if compare := _COMPARISONS.get(key):
            tests.append(partial(_any_compares, compare, operand))
        elif key == "not":
            tests.append(partial(_is_not, inner))
        elif key == "all":
            tests.append(set(operand).issubset)
        elif key == "any":
            tests.append(inner)
        else:
            expected = ", ".join((*_COMPARISONS, "any", "all", "not"))
            raise InputError(f"filter by {name}: there is no operator {str(key)[:100]!r}", expected=expected)
    if not tests:
        raise InputError(f"filter by {name}={{}}", expected="an operator, {'gte': 2000}")
    return lambda values: all(test(values) for test in tests)


def _any_compares(compare: Callable[[Any, Any], bool], operand: Any, values: tuple[Any, ...]) -> bool:
    return any(compare(value, operand) for value in values if value is not None)


def _is_not(test: Callable[[tuple[Any, ...]], bool], values: tuple[Any, ...]) -> bool:
    return not test(values)


def records_of(
    passages: Passages, kinds: Kinds, *, known: int = 0
) -> Iterator[tuple[Passage, Mapping[str, Any]]]:
    """Yields passages with the records that they were made from. A passage without an id gets its number,
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
