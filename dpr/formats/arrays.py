"""Arrays in ``.npy`` files: mapped and checked, ids of vectors, and the number types in which vectors are stored.

Every vector is coded alone: there is no pass over the corpus, and the bytes do not depend on what else is stored.

    float32, float16   the numbers
    int8               c = round(x / s) in -127 ... 127 with s = max|x| / 127; read as s * c
    binary             one bit per number, 1 where x >= 0, padded to whole bytes with 0, the first number in the highest bit;
                       read as s or -s with s = |x|^2 / sum|x|, so that the product of x with what is read is |x|^2

The scale s is float32, one per vector, in a file of its own.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import MAX_ID_BYTES

DTYPES = ("float32", "float16", "int8", "binary")
_NUMBERS: dict[str, np.dtype[Any]] = {name: np.dtype(code) for name, code in zip(DTYPES, ("<f4", "<f2", "i1", "u1"), strict=True)}
_ROWS = 1024  # coded at a time: float64 takes more memory than the codes
_LEAST_SCALE = float(np.finfo(np.float32).smallest_normal)


def is_coded(dtype: str) -> bool:
    """Whether vectors are stored as codes with a scale each, not as plain numbers."""
    return dtype in ("int8", "binary")


def array_names(dtype: str) -> tuple[str, ...]:
    """Names of the arrays that hold the vectors of a chunk."""
    return ("vectors", "scales") if is_coded(dtype) else ("vectors",)


def encode(vectors: np.ndarray, dtype: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Arrays by name for vectors (n, D), n at least 1, and which rows (n,) they cannot hold: not finite, or all zeros."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if not is_coded(dtype):
            stored = np.ascontiguousarray(vectors, dtype=_NUMBERS[dtype])
            return {"vectors": stored}, ~np.isfinite(stored).all(axis=1), np.asarray(~stored.any(axis=1))
        parts = [_coded(vectors[start : start + _ROWS].astype(np.float64), dtype) for start in range(0, len(vectors), _ROWS)]
    codes, scales, is_bad, is_zero = (np.concatenate(column) for column in zip(*parts, strict=True))
    return {"vectors": codes, "scales": scales}, is_bad, is_zero


def _coded(exact: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales, and which rows they cannot hold: not finite, all zeros."""
    sizes = np.abs(exact)
    scales = sizes.max(axis=1) / 127 if dtype == "int8" else np.square(exact).sum(axis=1) / sizes.sum(axis=1)
    is_zero = ~sizes.any(axis=1) | (scales < _LEAST_SCALE)
    stored = scales.astype("<f4")
    largest = stored * np.float32(127 if dtype == "int8" else 1)
    is_bad = ~np.isfinite(exact).all(axis=1) | (~np.isfinite(largest) & ~is_zero)
    if dtype == "binary":
        return np.packbits(exact >= 0, axis=1), stored, is_bad, is_zero
    is_kept = ~(is_bad | is_zero)
    ratios = np.where(is_kept[:, None], exact, 0) / np.where(is_kept, stored, 1).astype(np.float64)[:, None]
    return np.rint(ratios).clip(-127, 127).astype(np.int8), stored, is_bad, is_zero


def decode(arrays: dict[str, np.ndarray], dtype: str, dimension: int) -> np.ndarray:
    """The vectors (n, D): the array itself for float32 and float16, else float32."""
    codes = arrays["vectors"]
    if not is_coded(dtype):
        return codes
    scales = np.asarray(arrays["scales"])[:, None]
    if dtype == "int8":
        return codes * scales
    return np.where(np.unpackbits(codes, axis=1, count=dimension).view(bool), scales, -scales)


def map_array(path: Path) -> np.ndarray:
    """A memory-mapped ``.npy`` file. Its header is checked against the size of the file; nothing is allocated for what it claims.

    Raises:
        InputError: it is missing, damaged, or holds objects.
    """
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy's parser of a damaged header raises whatever comes up
        raise InputError(f"cannot be read ({error})", file=path) from None
    return array


def map_bytes(path: Path) -> np.ndarray:
    """The bytes of a file, memory-mapped."""
    if not path.stat().st_size:
        return np.zeros(0, dtype=np.uint8)
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)


def map_vectors(path: Path, name: str, dtype: str, dimension: int) -> np.ndarray:
    """One of ``array_names``, memory-mapped.

    Raises:
        InputError: it cannot be read, or is of another type or shape.
    """
    array = map_array(path)
    expected = np.dtype("<f4") if name == "scales" else _NUMBERS[dtype]
    row = () if name == "scales" else (-(-dimension // 8) if dtype == "binary" else dimension,)
    if array.ndim != 1 + len(row) or array.shape[1:] != row or array.dtype != expected:
        shape = str(("n", *row)).replace("'", "")
        raise InputError(f"holds {array.dtype} {array.shape}", file=path, expected=f"{expected} of shape {shape}")
    if not array.flags.c_contiguous:
        raise InputError("is in Fortran order", file=path, expected="the numbers of each vector side by side (numpy.ascontiguousarray)")
    return array


def pack_ids(ids: Sequence[bytes]) -> np.ndarray:
    """Ids as they are stored: whichever is smaller of fixed-width bytes (n,), and of uint8 numbers, all in one row: where each of the
    ids begins and where the last one ends, n + 1 little-endian uint32 counted from the first number on, and then their bytes."""
    fixed, text = np.array(ids, dtype=bytes), b"".join(ids)
    starts = 4 * (len(ids) + 1) + np.concatenate([[0], np.cumsum([len(key) for key in ids])])
    if starts[-1] >= min(fixed.nbytes, 2**32):
        return fixed
    return np.frombuffer(starts.astype("<u4").tobytes() + text, dtype=np.uint8)


class MappedIds:
    """Ids that ``pack_ids`` stored, memory-mapped; a slice of them, or the ids of some rows, is an array (n,) of fixed-width bytes.

    Raises:
        InputError: the file cannot be read, or holds anything but texts of at most MAX_ID_BYTES bytes.
    """

    def __init__(self, path: Path) -> None:
        self._path, array = path, map_array(path)
        if array.dtype != np.uint8 or array.ndim != 1:
            self._fixed: np.ndarray | None = map_ids(path)
            self._size = len(self._fixed)
            return
        self._fixed, self._bytes = None, array.view(np.ndarray)
        first = int(self._bytes[:4].view("<u4")[0]) if len(array) >= 4 else 0
        if first % 4 or not 4 <= first <= len(array):
            raise InputError("holds no ids", file=path, expected="where each begins, and their bytes")
        self._starts, self._size = self._bytes[:first].view("<u4"), first // 4 - 1

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice | np.ndarray) -> np.ndarray:
        if self._fixed is not None:
            return np.asarray(self._fixed[part])
        starts = self._starts[:-1][part].astype(np.int64)
        lengths = self._starts[1:][part] - starts
        if not len(starts):
            return np.empty(0, dtype="S1")
        ends = starts + lengths
        if lengths.min() < 1 or lengths.max() > MAX_ID_BYTES or starts.min() < 4 * (self._size + 1) or ends.max() > len(self._bytes):
            raise InputError(
                "an id does not begin where the one before it ends", file=self._path, expected=f"1 to {MAX_ID_BYTES} bytes each"
            )
        rows = np.zeros((len(starts), int(lengths.max())), dtype=np.uint8)
        is_used = np.arange(rows.shape[1]) < lengths[:, None]
        if isinstance(part, slice):
            rows[is_used] = self._bytes[starts[0] : ends[-1]]
        else:
            rows[is_used] = self._bytes[(starts[:, None] + np.arange(rows.shape[1]))[is_used]]
        return rows.view(f"S{rows.shape[1]}")[:, 0]


def map_ids(path: Path) -> np.ndarray:
    """Ids (n,), fixed-width UTF-8, memory-mapped.

    Raises:
        InputError: the file cannot be read, or holds anything but texts of at most MAX_ID_BYTES bytes.
    """
    ids = map_array(path)
    if ids.ndim != 1 or ids.dtype.kind != "S" or not 1 <= ids.dtype.itemsize <= MAX_ID_BYTES:
        expected = f"one row of byte strings, at most {MAX_ID_BYTES} bytes each"
        raise InputError(f"holds {ids.dtype} {ids.shape}", file=path, expected=expected)
    return np.asarray(ids)
