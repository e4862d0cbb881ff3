"""Arrays in ``.npy`` files, mapped and checked: ids of vectors, the number types in which vectors are stored,
and sorted 64-bit hashes of ids. The hashes find rows by id and prove that no id occurs twice (8 bytes an id
in memory).

Every vector is coded alone: there is no pass over the corpus, and the bytes do not depend on the other
vectors.

    float32, float16   the numbers
    int8               c = round(x / s) in -127 ... 127 with s = max|x| / 127; read as s * c

The scale s is float32, one per vector, in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import MAX_ID_BYTES

DTYPES = ("float32", "float16", "int8")
_NUMBERS: dict[str, np.dtype[Any]] = {
    name: np.dtype(code) for name, code in zip(DTYPES, ("<f4", "<f2", "i1"), strict=True)
}
_IDS_AT_ONCE = 1 << 16
_ROWS = 1024  # coded at a time: float64 takes more memory than the codes
_LEAST_SCALE = float(np.finfo(np.float32).smallest_normal)
_NARROW = 1 << 32  # bytes of ids up to which 32 bits name a place


def array_names(dtype: str) -> tuple[str, ...]:
    """Returns names of the arrays that hold the vectors of a chunk."""
    return ("vectors", "scales") if dtype == "int8" else ("vectors",)


def encode(vectors: np.ndarray, dtype: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns arrays by name for vectors (n, D), n at least 1, and two masks (n,) of the rows that they
    cannot hold: not finite, and all zeros."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if dtype != "int8":
            stored = np.ascontiguousarray(vectors, dtype=_NUMBERS[dtype])
            return {"vectors": stored}, ~np.isfinite(stored).all(axis=1), np.asarray(~stored.any(axis=1))
        parts = [
            _coded(vectors[start : start + _ROWS].astype(np.float64))
            for start in range(0, len(vectors), _ROWS)
        ]
    codes, scales, is_bad, is_zero = (np.concatenate(column) for column in zip(*parts, strict=True))
    return {"vectors": codes, "scales": scales}, is_bad, is_zero


def _coded(exact: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns codes, scales, and masks of the rows that they cannot hold: not finite, and all zeros."""
    scales = np.abs(exact).max(axis=1) / 127
    is_zero = ~exact.any(axis=1) | (scales < _LEAST_SCALE)
    stored = scales.astype("<f4")
    is_bad = ~np.isfinite(exact).all(axis=1) | (~np.isfinite(stored * np.float32(127)) & ~is_zero)
    is_kept = ~(is_bad | is_zero)
    ratios = np.where(is_kept[:, None], exact, 0) / np.where(is_kept, stored, 1).astype(np.float64)[:, None]
    return np.rint(ratios).clip(-127, 127).astype(np.int8), stored, is_bad, is_zero


def decode(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the vectors (n, D): the array itself for float32 and float16, else float32."""
    if "scales" not in arrays:
        return arrays["vectors"]
    return arrays["vectors"] * np.asarray(arrays["scales"])[:, None]


def array_writers(arrays: Mapping[str, np.ndarray]) -> dict[str, Callable[[IO[bytes]], Any]]:
    """Returns functions that write arrays as ``.npy`` files, by the names of the arrays."""
    return {
        name: partial(np.lib.format.write_array, array=array, allow_pickle=False)
        for name, array in arrays.items()
    }


def map_array(path: Path) -> np.ndarray:
    """Maps a ``.npy`` file into memory. Its header is checked against the size of the file, so nothing is
    allocated for a false claim.

    Raises:
        InputError: it is missing, damaged, or holds objects.
    """
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy's parser of a damaged header raises whatever comes up
        raise InputError(f"cannot be read ({error})", file=path) from None
    return array


def map_vectors(path: Path, name: str, dtype: str, dimension: int) -> np.ndarray:
    """Maps one of ``array_names`` into memory.

    Raises:
        InputError: it cannot be read, or is of another type or shape.
    """
    array = map_array(path)
    expected = np.dtype("<f4") if name == "scales" else _NUMBERS[dtype]
    row = () if name == "scales" else (dimension,)
    if array.ndim != 1 + len(row) or array.shape[1:] != row or array.dtype != expected:
        shape = str(("n", *row)).replace("'", "")
        raise InputError(
            f"holds {array.dtype} {array.shape}", file=path, expected=f"{expected} of shape {shape}"
        )
    return array


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


@dataclass
class ArraySource:
    """A source made of arrays in memory; ``vectors`` (n, D) float32 or float16."""

    ids: np.ndarray
    vectors: np.ndarray

    @property
    def num_vectors(self) -> int:
        return int(self.vectors.shape[0])

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1])

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields ids (n,) of dtype 'S' and vectors (n, D), all at once."""
        yield self.ids, self.vectors

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids and vectors (n, D) at these rows."""
        return self.ids[rows], self.vectors[rows]

    def id_chunks(self) -> Iterator[np.ndarray]:
        """Yields the ids alone."""
        yield self.ids


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
