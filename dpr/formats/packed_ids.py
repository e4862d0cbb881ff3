"""Ids of vectors as one array, of fixed-width bytes or of packed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import MAX_ID_BYTES
from dpr.formats.arrays import map_array

_IDS_AT_ONCE = 1 << 16
_NARROW = 1 << 32  # bytes of ids up to which 32 bits name a place
IdChunks = Callable[[], Iterable[np.ndarray]]
"""Function that gives ids in order, some (n,) of fixed-width bytes at a time. It may be called repeatedly."""


def pack_ids(chunks: IdChunks) -> np.ndarray:
    """Returns ids as one array, in the smaller of two forms: fixed-width bytes (n,), or, up to 4 GB, a row of
    uint8 numbers. The row holds the places at which the ids begin and the last one ends, n + 1 little-endian
    uint32 counted from the first number of the row, and then the bytes of the ids. One chunk is in memory at
    a time, and ``chunks`` is called twice."""
    empty = np.empty(0, dtype=np.int64)
    lengths = np.concatenate([empty, *(np.char.str_len(ids) for ids in chunks())])
    width = max(int(lengths.max(initial=0)), 1)
    start = 4 * (len(lengths) + 1)
    size = start + int(lengths.sum())
    if size >= min(len(lengths) * width, _NARROW):
        return np.concatenate(
            [np.empty(0, dtype=f"S{width}"), *(ids.astype(f"S{width}") for ids in chunks())]
        )
    packed = np.empty(size, dtype=np.uint8)
    packed[:start].view("<u4")[:] = start + np.concatenate([[0], np.cumsum(lengths)])
    for ids in chunks():
        content = np.frombuffer(b"".join(ids.tolist()), dtype=np.uint8)
        packed[start : start + len(content)] = content
        start += len(content)
    return packed


class PackedIds:
    """Ids as ``pack_ids`` gives them. A slice of them, or the ids of some rows, is an array (n,) of
    fixed-width bytes.

    Raises:
        InputError: the array holds anything but texts of at most MAX_ID_BYTES bytes; ``file`` is its source.
    """

    def __init__(self, array: np.ndarray, *, file: Path | None = None) -> None:
        self.array = array
        self._file = file
        self._fixed: np.ndarray | None = None
        if array.dtype != np.uint8 or array.ndim != 1:
            if array.ndim != 1 or array.dtype.kind != "S" or not 1 <= array.dtype.itemsize <= MAX_ID_BYTES:
                expected = f"one row of byte strings, at most {MAX_ID_BYTES} bytes each"
                raise InputError(f"holds {array.dtype} {array.shape}", file=file, expected=expected)
            self._fixed = array
            self._size = len(array)
            return
        self._bytes = array.view(np.ndarray)
        first = int(self._bytes[:4].view("<u4")[0]) if len(array) >= 4 else 0
        if first % 4 or not 4 <= first <= len(array):
            raise InputError("holds no ids", file=file, expected="where each begins, and their bytes")
        self._starts = self._bytes[:first].view("<u4")
        self._first = first
        self._size = len(self._starts) - 1

    @classmethod
    def mapped(cls, file: Path) -> PackedIds:
        """Returns the ids of a file, memory-mapped. Raises InputError also if the file cannot be read."""
        return cls(map_array(file), file=file)

    def __len__(self) -> int:
        return self._size

    def chunks(self) -> Iterator[np.ndarray]:
        """Yields all ids in order, some (n,) at a time."""
        return (self[start : start + _IDS_AT_ONCE] for start in range(0, self._size, _IDS_AT_ONCE))

    def __getitem__(self, part: slice | np.ndarray) -> np.ndarray:
        if self._fixed is not None:
            return np.asarray(self._fixed[part])
        starts, ends = (places[part].astype(np.int64) for places in (self._starts[:-1], self._starts[1:]))
        if not len(starts):
            return np.empty(0, dtype="S1")
        lengths = ends - starts
        if (
            lengths.min() < 1
            or lengths.max() > MAX_ID_BYTES
            or starts.min() < self._first
            or ends.max() > len(self._bytes)
        ):
            raise InputError(
                "an id does not begin where the one before it ends",
                file=self._file,
                expected=f"1 to {MAX_ID_BYTES} bytes each",
            )
        if not isinstance(part, slice):
            text = self._bytes.data  # is sliced faster than an array
            return np.array(
                [text[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
            )
        rows = np.zeros((len(starts), int(lengths.max())), dtype=np.uint8)
        rows[np.arange(rows.shape[1]) < lengths[:, None]] = self._bytes[starts[0] : ends[-1]]
        return rows.view(f"S{rows.shape[1]}")[:, 0]
