"""Fields of passages besides id, title and text, by which a search can be narrowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.formats.passage_records import field_of
from dpr.formats.record_fields import has_lone_surrogate, is_finite_number
from dpr.formats.record_files import has_records, read_records
from dpr.formats.text_input import located
from dpr.storage.untrusted import describe

KINDS: dict[str, tuple[type, ...]] = {"text": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}
"""Types of a field of metadata."""
_LARGEST_INT = 2**63 - 1


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
            yield tuple(value_of(name, kind, field_of(value, name)) for name, kind in kinds.items())


def kind_of(value: Any) -> str:
    """Returns the kind of field that a value, or every item of a list, is compared as; empty for one that cannot
    be compared."""
    if isinstance(value, list):
        kinds = {kind_of(item) for item in value if item is not None}
        return kinds.pop() if len(kinds) == 1 else ""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "int" if isinstance(value, int) and abs(value) > 2**53 else "float"
    return "text" if isinstance(value, str) else ""


def value_of(name: str, kind: str, value: Any) -> Any:
    """Returns a value as it is compared, a list as a tuple. Raises ValueError if it is of another kind."""
    if isinstance(value, list):
        return tuple(checked_field(name, kind, item) for item in value)
    return checked_field(name, kind, value)


def checked_field(name: str, kind: str, value: Any) -> Any:
    """Returns a single value as it is compared. Raises ValueError if it is of another kind."""
    if value is None:
        return None
    is_kind = isinstance(value, KINDS[kind]) and isinstance(value, bool) == (kind == "bool")
    if is_kind and kind == "text":
        is_kind = not has_lone_surrogate(value)
    elif is_kind and kind != "bool":
        is_kind = is_finite_number(value) and (kind == "float" or abs(value) <= _LARGEST_INT)
    if not is_kind:
        raise ValueError(
            f"{name} is {describe(value)}, expected {kind}, the kind of the passages before it, of where, or of"
            f" metadata=[{name}:<kind>], which takes {', '.join(KINDS)}"
        )
    return float(value) if kind == "float" else value
