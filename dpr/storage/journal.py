"""A file of JSON records that only grows, for changes that must survive a killed process without rewriting what
they change."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.storage.durable import durable_file, flush, json_text, writing
from dpr.storage.leftovers import open_own

_DIGITS = 33  # of a checksum and the space after it


class Journal:
    """Records in lines of a checksum and JSON. A line that was cut off is no record."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.end = 0
        """Bytes of the records that were read or written."""
        self._first = b""
        """Checksum of the first record, which tells whether this is still the file that was read. The inode does
        not: a file system gives that of a removed file to a later one."""
        self._seen: tuple[int, ...] = ()
        """State of the file when it was read or written, a last line that was cut off included."""

    def has_news(self) -> bool:
        """Returns whether another process has written to the file."""
        return self.file.exists() and _state(self.file.stat()) != self._seen

    def was_rewritten(self) -> bool:
        """Returns whether another process has put a record in the place of those that were read."""
        with open(self.file, "rb") as file:
            return file.read(len(self._first)) != self._first

    def read(self) -> Iterator[Any]:
        """Yields the records that were not read before; none if another process has just put one in the place of
        those that were (``was_rewritten``).

        Raises:
            InputError: the file is damaged.
        """
        if not self.file.exists():
            return
        with open(self.file, "rb") as file:
            state = _state(os.fstat(file.fileno()))
            if file.read(len(self._first)) != self._first:
                return
            file.seek(self.end)
            for line in file:
                if not line.endswith(b"\n"):  # its writer was killed, or still writes
                    break
                content = line[_DIGITS:]
                if line != _line(content):
                    found = f"content has changed (checksum at byte {self.end})"
                    raise InputError(found, file=self.file, hint="restore it from a copy")
                self._first = self._first or line[:_DIGITS]
                self.end += len(line)
                yield json.loads(content)
        self._seen = state  # not after an error: there is more to read

    def append(self, record: Any) -> None:
        """Adds a record, and returns when it is on the disk. The caller holds a lock and has read all earlier
        ones; what a killed writer left is removed.

        Raises:
            OutputError: it cannot be written.
        """
        line = _line(json_text(record).encode() + b"\n")
        with writing(self.file), open_own(self.file, "ab") as file:
            file.truncate(self.end)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
            self._seen = _state(os.fstat(file.fileno()))
        if not self.end:
            self._first = line[:_DIGITS]
            flush(self.file.parent)
        self.end += len(line)

    def rewrite(self, record: Any) -> None:
        """Puts a record in the place of all earlier ones. The caller appends another one next."""
        line = _line(json_text(record).encode() + b"\n")
        with durable_file(self.file, "wb") as file:
            file.write(line)
        self._first = line[:_DIGITS]
        self.end = len(line)


def _line(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest()[:32].encode() + b" " + content


def _state(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mtime_ns
