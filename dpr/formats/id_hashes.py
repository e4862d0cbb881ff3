"""Sorted 64-bit hashes of ids. They find rows by id and prove that no id occurs twice. They are in temporary
files, mapped, and sorted part by part, so memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np

from dpr.formats.arrays import map_array

_SORTED_AT_ONCE = 1 << 21


class HashIndex:
    """Index of rows by 64-bit hashes: (2, n) uint64, the sorted hashes and their rows, memory-mapped."""

    def __init__(self, path: Path) -> None:
        # Plain views: taking an element of a memmap makes another memmap, which costs some microseconds.
        self.hashes, self._rows = map_array(path).view(np.ndarray)

    @staticmethod
    def write(path: Path, hashes: np.ndarray) -> None:
        """Stores the hashes (n,) of rows 0, 1, 2, ..."""
        done = 0
        with open(path, "wb") as out:
            np.lib.format.write_array_header_1_0(
                out, {"descr": "<u8", "fortran_order": False, "shape": (2, len(hashes))}
            )
            first = out.tell()
            for part, rows in sorted_parts(hashes):
                out.seek(first + 8 * done)
                out.write(part.tobytes())
                out.seek(first + 8 * (len(hashes) + done))
                out.write(rows.astype("<u8").tobytes())
                done += len(part)

    def rows(self, wanted: int) -> Iterator[int]:
        """Yields the rows with this hash, ascending."""
        index = int(np.searchsorted(self.hashes, np.uint64(wanted)))
        while index < len(self.hashes) and self.hashes[index] == wanted:
            yield int(self._rows[index])
            index += 1


def mapped_hashes(file: IO[bytes]) -> np.ndarray:
    """Returns the hashes (n,) that were written to a file, 8 bytes each, memory-mapped."""
    file.flush()
    if not file.tell():
        return np.empty(0, dtype="<u8")
    return np.frombuffer(mmap(file.fileno(), 0, access=ACCESS_READ), dtype="<u8")


def sorted_parts(hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields all hashes in ascending order with their rows, some (n,) at a time. Equal ones are in one part."""
    count = len(hashes) // _SORTED_AT_ONCE + 1
    for number in range(count):
        low = np.uint64(2**64 * number // count)
        high = np.uint64(2**64 * (number + 1) // count - 1)
        found = [np.empty(0, dtype=np.int64)]
        for start in range(0, len(hashes), _SORTED_AT_ONCE):
            some = hashes[start : start + _SORTED_AT_ONCE]
            found.append(np.flatnonzero((some >= low) & (some <= high)) + start)
        rows = np.concatenate(found)
        rows = rows[np.argsort(hashes[rows], kind="stable")]
        yield hashes[rows], rows


def repeated_hashes(hashes: np.ndarray) -> np.ndarray:
    """Returns the hashes that occur more than once."""
    return np.unique(hashes[rows_of_repeated(hashes)])


def rows_of_repeated(hashes: np.ndarray) -> list[int]:
    """Returns the rows whose hash another row also has, ascending."""
    found: set[int] = set()
    for part, rows in sorted_parts(hashes):
        places = np.flatnonzero(part[1:] == part[:-1])
        found.update(rows[places].tolist(), rows[places + 1].tolist())
    return sorted(found)


def first_duplicate(sources: Sequence[Callable[[], Iterator[np.ndarray]]]) -> str | None:
    """Returns an id that occurs twice in arrays of byte strings, or None. The sources are read a second time
    if needed."""
    with TemporaryFile() as file:
        for source in sources:
            file.writelines(hash_ids(ids).tobytes() for ids in source())
        suspects = repeated_hashes(mapped_hashes(file))
    if not len(suspects):
        return None
    seen: set[bytes] = set()
    for source in sources:
        for ids in source():
            for key in ids[np.isin(hash_ids(ids), suspects)].tolist():
                if key in seen:
                    return str(key.decode(errors="replace"))
                seen.add(key)
    return None


def hash_ids(ids: np.ndarray) -> np.ndarray:
    """Returns 64-bit hashes (uint64) of fixed-width byte strings. The width, that is, trailing NULs, makes no
    difference."""
    rows = np.ascontiguousarray(ids).view(np.uint8).reshape(len(ids), -1)
    state = np.full(len(ids), 0xCBF29CE484222325, dtype=np.uint64)
    for column in rows.T:
        mixed = (state ^ column) * np.uint64(0x9E3779B97F4A7C15)
        state = np.where(column != 0, mixed ^ (mixed >> np.uint64(29)), state)
    return state
