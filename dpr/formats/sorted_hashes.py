"""64-bit hashes of ids, sorted: to find rows by id and to prove that no id occurs twice. Memory does not grow
with their number."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path

import numpy as np

from dpr.core.errors import InputError
from dpr.formats.arrays import map_array

_HELD_HASHES = 1 << 20
_BUCKETS = 128
_BUCKET_BITS = np.uint64(64 - 7)


def sorted_parts(
    blocks: Iterable[np.ndarray], *, held: int | None = None, folder: Path | None = None
) -> Iterator[np.ndarray]:
    """The rows of uint64 arrays (m, w) ordered by their first column, in parts; rows that are equal there
    keep their order.

    Rows with one value of the first column are never divided among two parts. Up to ``held`` rows are sorted
    in memory. More are first dealt out by their leading bits to unnamed files in ``folder`` (default: the
    system's for temporary files), 8 w bytes a row.

    Raises:
        InputError: there is no room for these files.
    """
    held = _HELD_HASHES if held is None else held
    source = iter(blocks)
    first: list[np.ndarray] = []
    while sum(map(len, first)) <= held:
        if (block := next(source, None)) is None:
            if first:
                yield _ordered(np.concatenate(first))
            return
        first.append(block)
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(_BUCKETS)]
            width = first[0].shape[1]
            while first:
                block = np.concatenate(first)
                buckets = (block[:, 0] >> _BUCKET_BITS).astype(np.uint8)
                order = np.argsort(buckets, kind="stable")
                ends = np.searchsorted(buckets[order], np.arange(_BUCKETS + 1))
                for file, start, stop in zip(files, ends[:-1], ends[1:], strict=True):
                    file.write(block[order[start:stop]].tobytes())
                first = list(islice(source, 1))
            for file in files:
                file.seek(0)
                yield _ordered(np.frombuffer(file.read(), dtype=np.uint64).reshape(-1, width))
                file.truncate(0)
    except OSError as error:
        found = f"no room for temporary files of 16 bytes per passage ({error.strerror or error})"
        hint = "make room there" if folder else "set TMPDIR to a folder with more room"
        raise InputError(found, file=folder or tempfile.gettempdir(), hint=hint) from None


def _ordered(rows: np.ndarray) -> np.ndarray:
    return rows[np.argsort(rows[:, 0], kind="stable")]


class HashIndex:
    """Rows by 64-bit hashes: (n, 2) uint64, hash and row, sorted by both, memory-mapped."""

    def __init__(self, path: Path) -> None:
        # A plain view: taking an element of a memmap makes another memmap, which costs some microseconds.
        self.pairs = map_array(path).view(np.ndarray)

    @staticmethod
    def write(path: Path, hashes: Iterable[int]) -> int:
        """Stores the hashes of rows 0, 1, 2, ... and returns how many. Memory does not grow with them; files
        of the same size stand beside ``path`` meanwhile."""
        source = iter(hashes)
        count = 0

        def pairs() -> Iterator[np.ndarray]:
            nonlocal count
            while len(held := np.fromiter(islice(source, _HELD_HASHES), dtype=np.uint64)):
                yield np.stack([held, np.arange(count, count + len(held), dtype=np.uint64)], axis=1)
                count += len(held)

        parts = sorted_parts(pairs(), folder=path.parent)
        first = next(parts, np.empty((0, 2), dtype=np.uint64))  # which counts them all
        with open(path, "wb") as out:
            np.lib.format.write_array_header_1_0(
                out, {"descr": "<u8", "fortran_order": False, "shape": (count, 2)}
            )
            for part in chain([first], parts):
                out.write(part.tobytes())
        return count

    def rows(self, wanted: int) -> Iterator[int]:
        """The rows with this hash, ascending."""
        index = int(np.searchsorted(self.pairs[:, 0], np.uint64(wanted)))
        while index < len(self.pairs) and self.pairs[index, 0] == wanted:
            yield int(self.pairs[index, 1])
            index += 1

    def repeated(self) -> Iterator[int]:
        """Rows whose hash an earlier row has."""
        for start in range(0, len(self.pairs), _HELD_HASHES):
            part = self.pairs[start : start + _HELD_HASHES + 1]
            yield from part[1:][part[1:, 0] == part[:-1, 0], 1].tolist()


def repeated_hashes(parts: Iterable[np.ndarray]) -> np.ndarray:
    """The hashes (n,) that occur more than once in ``sorted_parts``."""
    repeated = [np.unique(part[1:, 0][part[1:, 0] == part[:-1, 0]]) for part in parts]
    return np.concatenate(repeated) if repeated else np.empty(0, dtype=np.uint64)


def first_duplicate(sources: Sequence[Callable[[], Iterator[np.ndarray]]]) -> str | None:
    """An id that occurs twice in arrays of byte strings. The sources are read a second time if needed."""
    suspects = repeated_hashes(sorted_parts(hash_ids(ids)[:, None] for source in sources for ids in source()))
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
