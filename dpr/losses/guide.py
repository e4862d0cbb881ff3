"""Vectors of another model that say which passages are much alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpr.core.logs import get_logger

logger = get_logger(__name__)


class Guide:
    """Looks up vectors by judgement identity; it warns once where a whole batch has none.

    Args:
        chunks: the vectors, arrays (n, G) that may be mapped from files; 16 bytes are held for each key.
        keys: (K,) int64, the first number of identities; ``rows`` (K,) are their rows, counted through all chunks.
        fingerprint: changes with the vectors and their ids.
    """

    def __init__(self, chunks: Sequence[np.ndarray], keys: np.ndarray, rows: np.ndarray, *, fingerprint: str) -> None:
        order = np.argsort(keys, kind="stable")
        self._chunks, self._keys, self._rows, self.fingerprint = chunks, keys[order], rows[order], fingerprint
        self._starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self.dimension, self._has_warned = chunks[0].shape[1], False

    def vectors(self, ids: Tensor) -> Tensor:
        """Of identities (n, 2), on the host, the vectors (n, G) float32, of length 1, or zeros where there is none."""
        wanted = ids[:, 0].numpy()
        index = np.searchsorted(self._keys, wanted).clip(max=len(self._keys) - 1)
        rows, result = self._rows[index], np.zeros((len(wanted), self.dimension), dtype=np.float32)
        hits = np.flatnonzero(self._keys[index] == wanted)
        if not len(hits) and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "no passage of this batch has a vector in loss.guide; the training data must name passages by the ids of its shards"
            )
        chunk_of = np.searchsorted(self._starts, rows, side="right") - 1
        for hit in hits:
            chunk = int(chunk_of[hit])
            result[hit] = self._chunks[chunk][rows[hit] - self._starts[chunk]]
        lengths = np.linalg.norm(result, axis=1, keepdims=True)
        return torch.from_numpy(result / np.where(lengths > 0, lengths, 1.0).astype(np.float32))
