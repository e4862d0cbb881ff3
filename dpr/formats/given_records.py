"""Records given from Python: dictionaries by id, lists, and tables of pandas, polars, pyarrow and datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from dpr.core.errors import InputError
from dpr.core.records import Passage, Question, rows_of

Made = TypeVar("Made", Passage, Question)


def values_by_id(given: Any) -> Any:
    """Returns a series of pandas as a dictionary, and anything else as ``rows_of`` does.

    Raises:
        InputError: it holds no values.
    """
    is_series = hasattr(given, "to_frame") and hasattr(given, "to_dict")
    found = given.to_dict() if is_series else rows_of(given)
    if not isinstance(found, Iterable):
        raise InputError(
            f"given: {type(given).__name__}", expected="a file, a dictionary by id, a list or a table"
        )
    return found


def made_from(given: Any, what: str, make: Callable[[Any, str], Made]) -> Iterator[Made]:
    """Yields ``make(record, id)`` for the values of a dictionary, whose keys are the ids; or for the rows of a
    list or table, whose ids are their own or else their numbers.

    Raises:
        InputError: ``make`` raised ValueError, or an id occurs twice; says for which record.
    """
    found = values_by_id(given)
    is_by_id = isinstance(found, Mapping)
    seen = set()
    for key, record in found.items() if is_by_id else enumerate(found):
        if is_by_id and isinstance(record, Mapping):
            record = {**record, "_id": str(key)}
        try:
            made = make(record, str(key))
            if made.id in seen:
                raise ValueError(f"the id {made.id!r} occurs twice")
        except ValueError as error:
            raise InputError(f"{what} {key}: {error}") from None
        seen.add(made.id)
        yield made
