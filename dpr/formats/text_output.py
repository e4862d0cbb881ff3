"""Text files that are written whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dpr.core.errors import InputError
from dpr.storage.durable import durable_file

Note = Mapping[str, Any] | None
"""Provenance of a written file, for the checksum beside it."""


def require_word(value: str, file: Path) -> None:
    """Refuses an id that columns separated by spaces or tabs cannot hold."""
    if value.split() != [value]:
        found = f"the id {value!r} is empty or holds white space, which this format cannot hold"
        raise InputError(found, file=file)


@contextmanager
def durable_text(path: Path, *, note: Note = None) -> Iterator[IO[str]]:
    """Opens a durable UTF-8 text file; ``.gz`` is compressed, without a time stamp, so that equal content
    gives equal bytes."""
    try:
        if path.name.endswith(".gz"):
            with (
                durable_file(path, "wb", note=note) as raw,
                gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
                io.TextIOWrapper(packed, encoding="utf-8", newline="") as out,
            ):
                yield out
        else:
            with durable_file(path, note=note) as out:
                yield out
    except UnicodeEncodeError as error:
        raise InputError(
            f"half a character ({error.object[error.start]!a}) cannot be written as UTF-8", file=path
        ) from None


def write_json_lines(path: Path, records: Iterable[Mapping[str, Any]], note: Note = None) -> int:
    """Writes a JSON object a line. Returns the number of objects."""
    count = 0
    with durable_text(path, note=note) as out:
        for count, record in enumerate(records, 1):  # noqa: B007
            out.write(json.dumps(record, ensure_ascii=False) + "\n")
    return count
