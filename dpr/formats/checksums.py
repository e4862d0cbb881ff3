"""``<name>.sha256`` beside an output that is a single file: one line, as ``sha256sum --check`` reads it.

Folders have a manifest instead (``dpr.formats.durable``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpr.formats.durable import describe_file, durable_file

SUFFIX = ".sha256"


@contextmanager
def checksummed(path: Path) -> Iterator[None]:
    """A block that writes ``path``; its checksum follows. A writer that is killed in it leaves none rather than an old one."""
    note = _note_of(path)
    note.unlink(missing_ok=True)
    yield
    with durable_file(note) as out:
        out.write(f"{describe_file(path)['sha256']}  {path.name}\n")


def verify_file(path: Path) -> list[str]:
    """What is wrong with a file that has a checksum beside it, one sentence each; empty when it is as it was written."""
    note = _note_of(path)
    if not note.is_file():
        return [f"no {note.name} beside it, so nothing says what was written"]
    try:
        stated = re.match(r"[0-9a-f]{64}(?=\s)", note.read_bytes().decode("ascii", "replace"))
        if stated is None:
            return [f"{note.name} holds no SHA-256"]
        is_same = describe_file(path)["sha256"] == stated[0]
    except FileNotFoundError:
        return ["is missing"]
    except OSError as error:
        return [f"cannot be read ({error.strerror})"]
    return [] if is_same else [f"content has changed (SHA-256 differs from the one in {note.name})"]


def _note_of(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)
