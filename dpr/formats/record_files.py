"""Files whose rows are records with named fields (JSON, Parquet, Arrow), told by their names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpr.formats.json_records import iter_json_objects


def is_json_name(path: str | Path) -> bool:
    """True if a file name is that of JSON, with or without ``.gz``."""
    return str(path).lower().removesuffix(".gz").endswith((".jsonl", ".json", ".ndjson"))


def is_csv_name(path: Path) -> bool:
    """True if commas may separate the columns of a file of this name, with or without ``.gz``."""
    return path.name.lower().removesuffix(".gz").endswith(".csv")


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
