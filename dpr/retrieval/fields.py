"""Fields of passages by which a search can be filtered: equality, one of several values, several fields at
once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.embedding.source import PassageSource
from dpr.formats.corpus_metadata import KINDS, read_metadata
from dpr.indexer.ranking import encode_ids

_MOST_CHOICES = 100
_LONGEST_CHOICE = 200  # characters


class PassageFields:
    """Of every passage the values of some fields, 4 bytes each."""

    def __init__(
        self,
        ids: np.ndarray,
        kinds: Mapping[str, str],
        codes: Mapping[str, np.ndarray],
        values: Mapping[str, dict[Any, int]],
    ):
        self._ids, self._kinds, self._codes, self._values = ids, dict(kinds), codes, values

    @classmethod
    def read(cls, sources: Sequence[PassageSource], kinds: Mapping[str, str]) -> PassageFields:
        """Reads the fields ``kinds``, name -> kind, of all corpora.

        Raises:
            InputError: a corpus has no named fields, or a value is of another kind.
        """
        ids = (
            encode_ids([str(passage.id) for source in sources for passage in source.read()])
            if kinds
            else np.empty(0, dtype="S1")
        )
        return cls.of(
            ids,
            kinds,
            (row for source in sources for row in read_metadata(source.file, kinds)) if kinds else (),
        )

    @classmethod
    def of(cls, ids: np.ndarray, kinds: Mapping[str, str], rows: Iterable[tuple[Any, ...]]) -> PassageFields:
        """Of passages ``ids`` (N,), fixed-width bytes, and a row of values for each, in the order of
        ``kinds``."""
        values: dict[str, dict[Any, int]] = {name: {} for name in kinds}
        codes = {name: np.full(len(ids), -1, dtype=np.int32) for name in kinds}
        for index, row in enumerate(rows):
            for name, value in zip(kinds, row, strict=True):
                if value is not None:
                    codes[name][index] = values[name].setdefault(value, len(values[name]))
        return cls(ids, kinds, codes, values)

    def matching(self, wanted: Mapping[str, Any]) -> np.ndarray:
        """Ids (n,), ascending and distinct, of the passages whose fields have these values, or one of a list
        of them.

        Raises:
            InputError: a field is not known, or a value is of another kind.
        """
        is_chosen = np.ones(len(self._ids), dtype=bool)
        for name, given in wanted.items():
            if name not in self._kinds:
                known = ", ".join(self._kinds) or "none; metadata=<name> names them at the start"
                raise InputError(f"there is no field {name[:100]!r} to filter by", expected=known)
            kind, accepted = self._kinds[name], given if isinstance(given, list) else [given]
            for value in accepted:
                if not isinstance(value, KINDS[kind]) or isinstance(value, bool) != (kind == "bool"):
                    raise InputError(f"filter by {name}={str(value)[:100]!r}", expected=kind)
            if not self._values[name] and len(self._ids):
                raise InputError(
                    f"no passage has a value in the field {name[:100]!r}", expected="a field of the passages"
                )
            codes = [code for value in accepted if (code := self._values[name].get(value)) is not None]
            is_chosen &= np.isin(self._codes[name], codes)
        return np.unique(self._ids[is_chosen])

    def choices(self) -> dict[str, list[Any] | None]:
        """Of every field its values, ascending, where these are few and short enough to choose from a list,
        else None."""
        shown: dict[str, list[Any] | None] = {}
        for name, values in self._values.items():
            is_short = len(values) <= _MOST_CHOICES and all(
                len(str(value)) <= _LONGEST_CHOICE for value in values
            )
            shown[name] = sorted(values) if is_short else None
        return shown
