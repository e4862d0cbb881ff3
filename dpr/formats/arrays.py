"""Arrays in ``.npy`` files: mapped and checked, ids of vectors, the number types in which vectors are stored, and sorted
64-bit hashes of ids, to find rows by id and to prove that no id occurs twice (8 bytes an id in memory).

Every vector is coded alone: there is no pass over the corpus, and the bytes do not depend on what else is
stored.

    float32, float16   the numbers
    int8               c = round(x / s) in -127 ... 127 with s = max|x| / 127; read as s * c

The scale s is float32, one per vector, in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
_ROWS = 1024  # coded at a time: float64 takes more memory than the codes
_LEAST_SCALE = float(np.finfo(np.float32).smallest_normal)


def array_names(dtype: str) -> tuple[str, ...]:
    """Names of the arrays that hold the vectors of a chunk."""
    return ("vectors", "scales") if dtype == "int8" else ("vectors",)


def encode(vectors: np.ndarray, dtype: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Arrays by name for vectors (n, D), n at least 1, and which rows (n,) they cannot hold: not finite, or
    all zeros."""
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
    """Codes, scales, and which rows they cannot hold: not finite, all zeros."""
    scales = np.abs(exact).max(axis=1) / 127
    is_zero = ~exact.any(axis=1) | (scales < _LEAST_SCALE)
    stored = scales.astype("<f4")
    is_bad = ~np.isfinite(exact).all(axis=1) | (~np.isfinite(stored * np.float32(127)) & ~is_zero)
    is_kept = ~(is_bad | is_zero)
    ratios = np.where(is_kept[:, None], exact, 0) / np.where(is_kept, stored, 1).astype(np.float64)[:, None]
    return np.rint(ratios).clip(-127, 127).astype(np.int8), stored, is_bad, is_zero


def decode(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The vectors (n, D): the array itself for float32 and float16, else float32."""
    if "scales" not in arrays:
        return arrays["vectors"]
    return arrays["vectors"] * np.asarray(arrays["scales"])[:, None]


def array_writers(arrays: Mapping[str, np.ndarray]) -> dict[str, Callable[[IO[bytes]], Any]]:
    """Functions that write arrays as ``.npy`` files, by their names."""
    return {
        name: partial(np.lib.format.write_array, array=array, allow_pickle=False)
        for name, array in arrays.items()
    }


def map_array(path: Path) -> np.ndarray:
    """A memory-mapped ``.npy`` file. Its header is checked against the size of the file; nothing is allocated
    for what it claims.

    Raises:
        InputError: it is missing, damaged, or holds objects.
    """
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy's parser of a damaged header raises whatever comes up
        raise InputError(f"cannot be read ({error})", file=path) from None
    return array


def map_vectors(path: Path, name: str, dtype: str, dimension: int) -> np.ndarray:
    """One of ``array_names``, memory-mapped.

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


def map_ids(path: Path) -> np.ndarray:
    """Ids (n,) as fixed-width bytes, memory-mapped.

    Raises:
        InputError: it cannot be read, or holds anything but texts of at most MAX_ID_BYTES bytes.
    """
    ids = map_array(path).view(np.ndarray)
    if ids.ndim != 1 or ids.dtype.kind != "S" or not 1 <= ids.dtype.itemsize <= MAX_ID_BYTES:
        expected = f"one row of byte strings, at most {MAX_ID_BYTES} bytes each"
        raise InputError(f"holds {ids.dtype} {ids.shape}", file=path, expected=expected)
    return ids


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
        """Ids (n,) of dtype 'S' and vectors (n, D), all at once."""
        yield self.ids, self.vectors

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids and vectors (n, D) at these rows."""
        return self.ids[rows], self.vectors[rows]

    def id_chunks(self) -> Iterator[np.ndarray]:
        """The ids alone."""
        yield self.ids


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


def repeated_hashes(hashes: np.ndarray) -> np.ndarray:
    """The hashes that occur more than once."""
    ordered = np.sort(hashes)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def rows_of_repeated(hashes: np.ndarray) -> list[int]:
    """The rows whose hash another row has too, ascending."""
    return np.flatnonzero(np.isin(hashes, repeated_hashes(hashes))).tolist()


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
