"""What a program prints, kept as it comes. Such a file has no end that could be waited for, so it is not written beside its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def appended(path: Path) -> Iterator[IO[bytes]]:
    """The file, open for adding bytes, each of which is there at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", buffering=0) as file:
        yield file
