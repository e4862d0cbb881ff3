"""Stored vectors of another model, and a guide that says by them which passages are much alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpr.core.logs import get_logger

logger = get_logger(__name__)


class StoredVectors:
    """Looks up vectors by judgement identity.

    Args:
        chunks: the vectors, arrays (n, G) that may be mapped from files; 16 bytes are held for each key.
        keys: (K,) int64, the first number of identities; ``rows`` (K,) are their rows, counted through all
        chunks.
        fingerprint: changes with the vectors and their ids.
    """

    def __init__(
        self, chunks: Sequence[np.ndarray], keys: np.ndarray, rows: np.ndarray, *, fingerprint: str
    ) -> None:
        order = np.argsort(keys, kind="stable")
        self._chunks, self._keys, self._rows, self.fingerprint = chunks, keys[order], rows[order], fingerprint
        self._starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self.dimension = chunks[0].shape[1]

    def find(self, ids: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Of identities (n, 2), on the host, whether each has a vector, (n,), and the vectors (n, G), in fp32
        at least; zeros for none."""
        wanted = ids[:, 0].numpy()
        index = np.searchsorted(self._keys, wanted).clip(max=len(self._keys) - 1)
        rows, is_found = self._rows[index], self._keys[index] == wanted
        vectors = np.zeros(
            (len(wanted), self.dimension), dtype=np.result_type(np.float32, self._chunks[0].dtype)
        )
        chunk_of = np.searchsorted(self._starts, rows, side="right") - 1
        for hit in np.flatnonzero(is_found):
            chunk = int(chunk_of[hit])
            vectors[hit] = self._chunks[chunk][rows[hit] - self._starts[chunk]]
        return is_found, vectors

    def usual_length(self) -> float:
        """The median length of some vectors."""
        return float(np.median(np.linalg.norm(self._chunks[0][:64].astype(np.float32), axis=1)))


class Guide:
    """Says which passages are much alike; it warns once where a whole batch has no vector."""

    def __init__(self, vectors: StoredVectors) -> None:
        self._vectors, self.fingerprint, self._has_warned = vectors, vectors.fingerprint, False

    def vectors(self, ids: Tensor) -> Tensor:
        """Of identities (n, 2), on the host, the vectors (n, G) float32, of length 1, or zeros where there is
        none."""
        is_found, result = self._vectors.find(ids)
        if not is_found.any() and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "no passage of this batch has a vector in loss.guide; the training data must name passages by"
                " the ids of its shards"
            )
        lengths = np.linalg.norm(result, axis=1, keepdims=True)
        return torch.from_numpy(result / np.where(lengths > 0, lengths, 1.0).astype(np.float32))
