"""Vectors of another model, looked up by the identity of their passage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor


class StoredVectors:
    """Vectors that are looked up by passage identity.

    Args:
        chunks: the vectors, arrays (n, G) that may be mapped from files. Each key takes 16 bytes of memory.
        keys: the first numbers of the identities, (K,) int64.
        rows: the row of each key, (K,), counted through all chunks.
        fingerprint: changes with the vectors and their ids.
    """

    def __init__(
        self, chunks: Sequence[np.ndarray], keys: np.ndarray, rows: np.ndarray, *, fingerprint: str
    ) -> None:
        order = np.argsort(keys, kind="stable")
        self._chunks = chunks
        self._keys = keys[order]
        self._rows = rows[order]
        self.fingerprint = fingerprint
        self._starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self.dimension = chunks[0].shape[1]

    def find(self, ids: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Returns whether each of the identities (n, 2), on the host, has a vector, (n,), and the vectors
        (n, G) in fp32 at least, with zeros where there is none."""
        wanted = ids[:, 0].numpy()
        index = np.searchsorted(self._keys, wanted).clip(max=len(self._keys) - 1)
        rows = self._rows[index]
        is_found = self._keys[index] == wanted
        dtype = np.result_type(np.float32, self._chunks[0].dtype)
        vectors = np.zeros((len(wanted), self.dimension), dtype)
        chunk_of = np.searchsorted(self._starts, rows, side="right") - 1
        for hit in np.flatnonzero(is_found):
            chunk = chunk_of[hit]
            vectors[hit] = self._chunks[chunk][rows[hit] - self._starts[chunk]]
        return is_found, vectors

    def typical_length(self) -> float:
        """Returns the median length of the first vectors, 64 at most."""
        return float(np.median(np.linalg.norm(self._chunks[0][:64].astype(np.float32), axis=1)))
