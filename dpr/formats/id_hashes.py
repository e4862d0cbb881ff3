"""Sorted 64-bit hashes of ids. They find rows by id and prove that no id occurs twice (8 bytes an id in
memory)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from dpr.formats.arrays import map_array


class HashIndex:
    """Index of rows by 64-bit hashes: (2, n) uint64, the sorted hashes and their rows, memory-mapped."""

    def __init__(self, path: Path) -> None:
        # Plain views: taking an element of a memmap makes another memmap, which costs some microseconds.
        self.hashes, self._rows = map_array(path).view(np.ndarray)

    @staticmethod
    def write(path: Path, hashes: np.ndarray) -> None:
        """Stores the hashes (n,) of rows 0, 1, 2, ..."""
        order = np.argsort(hashes, kind="stable").astype(np.uint64)
        np.save(path, np.stack([hashes[order], order]))

    def rows(self, wanted: int) -> Iterator[int]:
        """Yields the rows with this hash, ascending."""
        index = int(np.searchsorted(self.hashes, np.uint64(wanted)))
        while index < len(self.hashes) and self.hashes[index] == wanted:
            yield int(self._rows[index])
            index += 1


def repeated_hashes(hashes: np.ndarray) -> np.ndarray:
    """Returns the hashes that occur more than once."""
    ordered = np.sort(hashes)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def rows_of_repeated(hashes: np.ndarray) -> list[int]:
    """Returns the rows whose hash another row also has, ascending."""
    return np.flatnonzero(np.isin(hashes, repeated_hashes(hashes))).tolist()


def first_duplicate(sources: Sequence[Callable[[], Iterator[np.ndarray]]]) -> str | None:
    """Returns an id that occurs twice in arrays of byte strings, or None. The sources are read a second time
    if needed."""
    hashes = [hash_ids(ids) for source in sources for ids in source()]
    suspects = repeated_hashes(np.concatenate(hashes)) if hashes else np.empty(0)
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
