"""What the fuzzer knows of a reader."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import Mutation

Files = dict[str, bytes]


@dataclass(frozen=True)
class Subject:
    """A reader: ``target`` is the file that is damaged, ``files`` everything it lies among."""

    target: str
    files: Callable[[], Files]
    read: Callable[[Path], Any]
    kinds: tuple[Mutation, ...]
    has_lines: bool = False
    """Whether a message can say in which line the fault is."""
    weight: float = 1.0
    """Slow readers get fewer cases."""
    beforehand: Callable[[Path], None] = field(default=lambda folder: None)
    """Called with the folder after the damage, as whoever means harm would: to make the manifest agree."""


def lines(*records: Any) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def contents(folder: Path, name: str) -> Files:
    """All files of a folder, as if it were called ``name``."""
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
