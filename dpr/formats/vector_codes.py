"""The number types in which vectors are stored, and the way back to float32.

Every vector is coded by itself: no pass over the corpus comes first, and the bytes do not depend on what else is stored.

    float32, float16   the numbers
    int8               c = round(x / s) in -127 ... 127 with s = max|x| / 127; read as s * c
    binary             one bit per number, 1 where x >= 0, filled up with 0 to whole bytes, the first number in the highest bit;
                       read as s or -s with s = |x|^2 / sum|x|, so that the product of x with what is read is |x|^2

The scale s is float32, one per vector, in a file of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

DTYPES = ("float32", "float16", "int8", "binary")
_PLAIN: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
_CODES: dict[str, np.dtype[Any]] = {"int8": np.dtype("i1"), "binary": np.dtype("u1")}
_ROWS = 1024  # coded at a time: float64 takes more memory than the codes
_LEAST_SCALE = float(np.finfo(np.float32).smallest_normal)


def array_names(dtype: str) -> tuple[str, ...]:
    """Names of the arrays that hold the vectors of a chunk."""
    return ("vectors",) if dtype in _PLAIN else ("vectors", "scales")


def expected_array(name: str, dtype: str, dimension: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Type and shape, but for the number of rows, of an array of ``array_names``."""
    if name == "scales":
        return np.dtype("<f4"), ()
    return (_PLAIN | _CODES)[dtype], (-(-dimension // 8) if dtype == "binary" else dimension,)


def encode(vectors: np.ndarray, dtype: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Arrays by name for vectors (n, D), n at least 1, and which rows (n,) they cannot hold: not finite, or nothing but zeros."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if dtype in _PLAIN:
            stored = np.ascontiguousarray(vectors, dtype=_PLAIN[dtype])
            return {"vectors": stored}, ~np.isfinite(stored).all(axis=1), np.asarray(~stored.any(axis=1))
        parts = [_coded(vectors[start : start + _ROWS].astype(np.float64), dtype) for start in range(0, len(vectors), _ROWS)]
    codes, scales, is_bad, is_zero = (np.concatenate(column) for column in zip(*parts, strict=True))
    return {"vectors": codes, "scales": scales}, is_bad, is_zero


def _coded(exact: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales, and the two kinds of rows they cannot hold."""
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
    if dtype in _PLAIN:
        return codes
    scales = np.asarray(arrays["scales"])[:, None]
    if dtype == "int8":
        return codes * scales
    return np.where(np.unpackbits(codes, axis=1, count=dimension).view(bool), scales, -scales)
