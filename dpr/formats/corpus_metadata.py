"""Chosen fields of a corpus beside id, title and text: in its records, or in BEIR's object ``metadata``
inside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.formats.corpora import has_records, read_records
from dpr.formats.json_records import is_finite_number
from dpr.formats.origins import field_of
from dpr.formats.text_input import has_lone_surrogate, located
from dpr.storage.strict_json import describe

KINDS: dict[str, tuple[type, ...]] = {"text": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}
_LARGEST_INT = 2**63 - 1


def read_metadata(path: Path, kinds: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    """The values of the fields ``kinds``, name -> kind, for every passage of a corpus in order; None where a
    record has none.

    Raises:
        InputError: the corpus has no named fields, or a value is of another kind (file and line).
    """
    if not has_records(path):
        hint = "write the corpus as .jsonl or .parquet, or leave metadata out"
        raise InputError(
            "has no fields besides id, title and text",
            file=path,
            expected=f"a corpus with {', '.join(kinds)}",
            hint=hint,
        )
    for line, value in read_records(path):
        with located(path, line):
            yield tuple(checked_field(name, kind, field_of(value, name)) for name, kind in kinds.items())


def checked_field(name: str, kind: str, value: Any) -> Any:
    """A value as it is compared; ValueError where it is of another kind."""
    if value is None:
        return None
    is_kind = isinstance(value, KINDS[kind]) and isinstance(value, bool) == (kind == "bool")
    if not is_kind or not _fits(kind, value):
        raise ValueError(
            f"{name} is {describe(value)}, expected {kind}; metadata=[{name}:<kind>] takes {', '.join(KINDS)}"
        )
    return float(value) if kind == "float" else value


def _fits(kind: str, value: Any) -> bool:
    if kind == "int":
        return -_LARGEST_INT <= value <= _LARGEST_INT
    return not has_lone_surrogate(value) if kind == "text" else kind == "bool" or is_finite_number(value)
