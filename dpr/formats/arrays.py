"""Arrays in ``.npy`` files, written without objects and memory-mapped; and ids and vectors in memory that are
read in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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


@dataclass
class ArraySource:
    """A source of vectors over arrays in memory; ``vectors`` (n, D) float32 or float16."""

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
