"""Ids and vectors in memory, read as those in files are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


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
