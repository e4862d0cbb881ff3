"""Filters of a search: the values of fields of all passages, and the conditions that they are compared with."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import Passage, json_value
from dpr.formats.passage_metadata import KINDS, value_of
from dpr.indexer.ranking import encode_ids, is_among

_MOST_CHOICES = 100
_LONGEST_CHOICE = 200  # characters


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

    def change(self, gone: Iterable[str], added: Iterable[Passage]) -> None:
        """Removes the passages with these ids, then adds passages. Raises as the constructor."""
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
        is_kept = ~is_among(self._ids, encode_ids(sorted(gone)))
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
            known_values = self._values[name]
            if not known_values and len(self._ids):
                raise InputError(
                    f"no passage has a value in the field {name[:100]!r}",
                    expected="a field of the passages; all fields of a filter have to match",
                )
            condition = checked_condition(name, self._kinds[name], given)
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
    return lambda values, bounds: any(
        compare(value, bound) for value in values if value is not None for bound in bounds
    )


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
    wanted = json_value(wanted)
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
