"""Number types in which vectors are stored.

Every vector is coded alone: there is no pass over the corpus, and the bytes do not depend on the other
vectors.

    float32, float16   the numbers
    int8               c = round(x / s) in -127 ... 127 with s = max|x| / 127; read as s * c

The scale s is float32, one per vector, in a file of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.formats.npy_files import map_array

DTYPES = ("float32", "float16", "int8")
_NUMBERS: dict[str, np.dtype[Any]] = {name: np.dtype(name).newbyteorder("<") for name in DTYPES}
_ROWS = 1024  # coded at a time: float64 takes more memory than the codes
_LEAST_SCALE = float(np.finfo(np.float32).smallest_normal)


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
