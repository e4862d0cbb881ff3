"""Where the rows of a corpus begin, and hashes of their ids: a large file is read by several processes, each
some of its byte ranges.

In a TSV only what is before a line says whether it begins a row or is inside quotes. So a range is read from
a line that looks like a row, and what was found counts only if its first row is the one at which the rows
before it ended. If not, or if its process found a fault or died, the range is read again from there. The
result is that of one reading, whatever the number of processes.

``python -m dpr.formats.corpus_ranges`` is one of these processes. It writes what it finds to its standard
output.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import subprocess
import sys
from array import array
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from dpr.core.errors import InputError
from dpr.core.hashes import text_hash
from dpr.formats.corpora import Columns, corpus_form, has_records, numbered_ids
from dpr.formats.delimited import table_rows
from dpr.formats.text_input import MAX_LINE_BYTES, LinePlace

_RANGE_BYTES = 1 << 24
_LEAST_RANGES = 4
_MOST_PROCESSES = 32
_BLOCK_ROWS = 1 << 16
_TRIED_LINES, _TRIED_ROWS = 64, 3
# number of rows, line and byte of the row after them; -1: there is none, or no row could be read
_HEAD = struct.Struct("<qqq")

_Rows = Generator[np.ndarray, None, LinePlace | None]


def row_blocks(file: Path, columns: Columns, processes: int) -> Iterator[np.ndarray]:
    """Of all rows in order, some at a time: hash of the id, line, and byte at which the row begins, (m, 3)
    uint64.

    Raises:
        InputError: a row is bad (file and line).
    """
    ranges = _Ranges(file, columns, _RANGE_BYTES)
    processes = min(processes, _MOST_PROCESSES, ranges.num_ranges)
    if processes < 2 or ranges.num_ranges < _LEAST_RANGES:
        yield from ranges.rows(LinePlace(), None)
        return
    place = LinePlace()
    with _readers(ranges, processes) as streams:
        for number in range(ranges.num_ranges):
            block = _received(streams[number % processes])
            if block is not None and (
                number == 0 or (block.first is not None and block.first.offset == place.offset)
            ):
                lines = place.line - block.first.line if number and block.first else 0
                block.rows[:, 1] += np.uint64(lines)
                yield block.rows
                end = block.end and LinePlace(block.end.line + lines, block.end.offset)
            else:
                end = yield from ranges.rows(place, ranges.start(number + 1))
            if end is None:
                return
            place = end


@dataclass(frozen=True, slots=True)
class _RangeRows:
    """What a process found in a range; it counts lines from the first that it read."""

    rows: np.ndarray
    end: LinePlace | None
    """The row after them, if there is one."""

    @property
    def first(self) -> LinePlace | None:
        return LinePlace(int(self.rows[0, 1]), int(self.rows[0, 2])) if len(self.rows) else self.end


class _Ranges:
    """The byte ranges of a file, and the rows in them."""

    def __init__(self, file: Path, columns: Columns, range_bytes: int) -> None:
        self.file, self.columns, self.range_bytes = file, columns, range_bytes
        self._size = file.stat().st_size
        self.num_ranges = -(-self._size // range_bytes)

    def start(self, number: int) -> int | None:
        """The byte at which a range begins: a line that looks like the first of a row; None after the last
        range."""
        if number in (0, self.num_ranges):
            return None if number else 0
        with open(self.file, "rb") as stream:
            stream.seek(number * self.range_bytes - 1)
            stream.readline(MAX_LINE_BYTES)
            first = stream.tell()
            if has_records(self.file):  # a line of JSON is a record
                return first
            form = corpus_form(self.file)
            for _ in range(_TRIED_LINES):
                place = LinePlace(1, stream.tell())
                try:
                    if all(
                        len(row) == form.width
                        for _, row in islice(table_rows(self.file, form, replace(place)), _TRIED_ROWS)
                    ):
                        return place.offset
                except InputError:
                    pass
                stream.readline(MAX_LINE_BYTES)
        return first

    def rows(self, place: LinePlace, stop: int | None) -> _Rows:
        """Yields the rows from ``place`` on that begin before byte ``stop``, as ``row_blocks``, and returns
        where the next one is."""
        held = array("Q")
        for _, key in numbered_ids(self.file, self.columns, place):
            if stop is not None and place.offset >= stop:
                yield np.array(held).reshape(-1, 3)
                return place
            held.extend((text_hash(key), place.line, place.offset))
            if len(held) == 3 * _BLOCK_ROWS:
                yield np.array(held).reshape(-1, 3)
                held = array("Q")
        yield np.array(held).reshape(-1, 3)
        return None

    def found(self, number: int) -> _RangeRows | None:
        """The rows of a range, if it begins where it seems to begin; None where none could be read from
        there."""
        blocks, rows = [], self.rows(LinePlace(1, self.start(number) or 0), self.start(number + 1))
        try:
            while True:
                blocks.append(next(rows))
        except StopIteration as stopped:
            return _RangeRows(np.concatenate(blocks), stopped.value)
        except InputError:  # whoever reads the range from its true beginning finds the line
            return None


@contextmanager
def _readers(ranges: _Ranges, processes: int) -> Iterator[list[IO[bytes]]]:
    """The outputs of processes of which each reads every ``processes``-th range, one ahead of what is taken
    from it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(processes):
            told = json.dumps(
                [str(ranges.file.absolute()), ranges.columns, ranges.range_bytes, number, processes]
            )
            command = [sys.executable, "-m", "dpr.formats.corpus_ranges", told]
            started.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                )
            )
        yield [process.stdout for process in started if process.stdout is not None]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _received(stream: IO[bytes]) -> _RangeRows | None:
    """What a process found in its next range; None where it could read none, or has ended."""
    head = stream.read(_HEAD.size)
    num_rows, line, offset = _HEAD.unpack(head) if len(head) == _HEAD.size else (-1, -1, -1)
    content = bytearray(stream.read(24 * max(num_rows, 0)))
    if num_rows < 0 or len(content) < 24 * num_rows:
        return None
    return _RangeRows(
        np.frombuffer(content, dtype=np.uint64).reshape(-1, 3), None if line < 0 else LinePlace(line, offset)
    )


def _send(block: _RangeRows | None, out: IO[bytes]) -> None:
    """Writes what ``_received`` reads."""
    if block is None:
        out.write(_HEAD.pack(-1, -1, -1))
    else:
        end = block.end or LinePlace(-1, -1)
        out.write(_HEAD.pack(len(block.rows), end.line, end.offset))
        out.write(np.ascontiguousarray(block.rows).data)
    out.flush()


def main(told: str) -> None:
    """Sends every n-th range of a file."""
    file, columns, range_bytes, first, processes = json.loads(told)
    logging.disable()  # whoever reads the texts warns of what is in them
    ranges = _Ranges(Path(file), tuple(columns), range_bytes)
    for number in range(first, ranges.num_ranges, processes):
        _send(ranges.found(number), sys.stdout.buffer)


if __name__ == "__main__":
    main(sys.argv[1])
