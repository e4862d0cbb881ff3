"""64-bit hashes of ids, sorted: to find rows by id and to prove that no id occurs twice. Eight bytes an id are
held in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from dpr.formats.arrays import map_array


class HashIndex:
    """Rows by 64-bit hashes: (2, n) uint64, the sorted hashes and their rows, memory-mapped."""

    def __init__(self, path: Path) -> None:
        # Plain views: taking an element of a memmap makes another memmap, which costs some microseconds.
        self.hashes, self._rows = map_array(path).view(np.ndarray)

    @staticmethod
    def write(path: Path, hashes: np.ndarray) -> None:
        """Stores the hashes (n,) of rows 0, 1, 2, ..."""
        order = np.argsort(hashes, kind="stable").astype(np.uint64)
        np.save(path, np.stack([hashes[order], order]))

    def rows(self, wanted: int) -> Iterator[int]:
        """The rows with this hash, ascending."""
        index = int(np.searchsorted(self.hashes, np.uint64(wanted)))
        while index < len(self.hashes) and self.hashes[index] == wanted:
            yield int(self._rows[index])
            index += 1

    def repeated(self) -> Iterator[list[int]]:
        """The rows of each hash that several rows have, ascending; first those whose second row comes first."""
        is_repeated = self.hashes[1:] == self.hashes[:-1]
        # where a run of equal hashes begins
        begins = np.flatnonzero(is_repeated & ~np.concatenate([[False], is_repeated[:-1]]))
        for place in begins[np.argsort(self._rows[begins + 1])].tolist():
            yield list(self.rows(int(self.hashes[place])))


def repeated_hashes(hashes: np.ndarray) -> np.ndarray:
    """The hashes that occur more than once."""
    ordered = np.sort(hashes)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def first_duplicate(sources: Sequence[Callable[[], Iterator[np.ndarray]]]) -> str | None:
    """An id that occurs twice in arrays of byte strings. The sources are read a second time if needed."""
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
    """64-bit hashes (uint64) of fixed-width byte strings; the width, that is, trailing NULs, makes no
    difference."""
    rows = np.ascontiguousarray(ids).view(np.uint8).reshape(len(ids), -1)
    state = np.full(len(ids), 0xCBF29CE484222325, dtype=np.uint64)
    for column in rows.T:
        mixed = (state ^ column) * np.uint64(0x9E3779B97F4A7C15)
        state = np.where(column != 0, mixed ^ (mixed >> np.uint64(29)), state)
    return state
