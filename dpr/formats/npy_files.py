"""Arrays in ``.npy`` files: written without objects, mapped into memory when they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpr.core.errors import InputError


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
