"""Inverted lists in a file: the codes of each list side by side, then the places of its vectors, so that a search reads one stretch a list.

Of a list of n vectors the file has n codes of C bytes each, then n rows of 8 bytes each. Sizes are kept beside it; where lists begin
follows from them. The same format, that of faiss's OnDiskInvertedLists, serves for a part of a corpus and for the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from dpr.core.errors import InputError
from dpr.formats.arrays import map_array, map_bytes

_ROW_BYTES = 8


class Lists(Protocol):
    """The lists of one part of a corpus."""

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Codes (n, C) uint8 and rows (n,) int64 of a list."""
        ...


class HeldLists:
    """Those of a faiss index in memory."""

    def __init__(self, engine: Any) -> None:
        self._lists, self._code_size = engine.invlists, int(engine.code_size)

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        import faiss

        size = self._lists.list_size(number)
        if not size:
            return np.zeros((0, self._code_size), dtype=np.uint8), np.zeros(0, dtype=np.int64)
        codes = faiss.rev_swig_ptr(self._lists.get_codes(number), size * self._code_size)
        return codes.reshape(size, -1), faiss.rev_swig_ptr(self._lists.get_ids(number), size)


class ListFile:
    """Those of a file, memory-mapped.

    Raises:
        InputError: the file is not as long as its sizes say.
    """

    def __init__(self, file: Path, sizes: np.ndarray, code_size: int) -> None:
        self.file, self.sizes, self.code_size = file, sizes, code_size
        ends = np.cumsum(sizes * (code_size + _ROW_BYTES))
        self._starts, self.num_bytes = ends - sizes * (code_size + _ROW_BYTES), int(ends[-1])
        if (found := file.stat().st_size) != self.num_bytes:
            raise InputError(f"has {found} bytes", file=file, expected=f"{self.num_bytes} for {int(sizes.sum())} vectors")
        self._bytes = map_bytes(file)

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        size, start = int(self.sizes[number]), int(self._starts[number])
        middle = start + size * self.code_size
        codes = self._bytes[start:middle].reshape(size, self.code_size)
        return codes, self._bytes[middle : middle + size * _ROW_BYTES].view(np.int64)


def write_lists(parts: Sequence[Lists], num_lists: int, out: IO[bytes]) -> np.ndarray:
    """Writes the lists of all parts, one list at a time; returns their sizes (num_lists,)."""
    sizes = np.zeros(num_lists, dtype=np.int64)
    for number in range(num_lists):
        codes, rows = zip(*(part.read(number) for part in parts), strict=True)
        sizes[number] = sum(map(len, rows))
        for piece in (*codes, *rows):
            out.write(np.ascontiguousarray(piece).data)
    return sizes


def read_sizes(file: Path, num_lists: int) -> np.ndarray:
    """The sizes of the lists; raises InputError where the file holds anything else."""
    sizes = map_array(file)
    if sizes.shape != (num_lists,) or sizes.dtype != np.int64 or (num_lists and int(sizes.min()) < 0):
        raise InputError(f"holds {sizes.dtype} {sizes.shape}", file=file, expected=f"the sizes of {num_lists} lists")
    return np.array(sizes)


def attach(engine: Any, lists: ListFile) -> None:
    """Lets a trained, empty faiss index search the lists of a file, memory-mapped where faiss can (not on Windows)."""
    import faiss

    if not hasattr(faiss, "OnDiskInvertedLists"):
        held: Any = faiss.ArrayInvertedLists(engine.nlist, engine.code_size)
        for number in np.flatnonzero(lists.sizes).tolist():
            codes, rows = (np.ascontiguousarray(part) for part in lists.read(number))
            held.add_entries(number, len(rows), faiss.swig_ptr(rows), faiss.swig_ptr(codes))
        _replace(engine, held)
    elif lists.num_bytes:
        mapped: Any = faiss.OnDiskInvertedLists()
        mapped.nlist, mapped.code_size, mapped.read_only = engine.nlist, engine.code_size, True
        mapped.filename, mapped.totsize = str(lists.file), lists.num_bytes
        mapped.lists.resize(engine.nlist)  # entries of its own type, not Python's
        sizes = lists.sizes.astype(np.uint64)  # a name, as the pointer does not keep it alive
        mapped.set_all_lists_sizes(faiss.swig_ptr(sizes))
        mapped.do_mmap()
        _replace(engine, mapped)
    engine.ntotal = int(lists.sizes.sum())


def _replace(engine: Any, lists: Any) -> None:
    engine.replace_invlists(lists, True)
    lists.this.disown()
