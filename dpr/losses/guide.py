"""Vectors of another model that say which passages are much alike, read from vector shards by passage id."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.records import Passage
from dpr.data.collator import judgement_identity
from dpr.formats.vector_shards import open_shards

logger = get_logger(__name__)


class Guide:
    """Looks up vectors by judgement identity: that of a passage's id within each of ``namespaces``.

    It warns once where a whole batch has none. Vectors stay in the mapped files; 16 bytes are held for each passage and namespace.

    Raises:
        InputError: the shards cannot be read, or do not fit together.
    """

    def __init__(self, patterns: Sequence[str | Path], namespaces: Sequence[str]) -> None:
        self._chunks: list[np.ndarray] = []
        self._has_warned = False
        keys, places = list[int](), list[int]()
        row = 0
        for shard in open_shards(patterns, verify=False):
            for ids, vectors in shard.chunks():
                self._chunks.append(vectors)
                for number, key in enumerate(ids):
                    passage = Passage("", id=key.decode())
                    for namespace in namespaces:
                        keys.append(judgement_identity(passage, namespace)[0])
                        places.append(row + number)
                row += len(ids)
        if not row:
            raise ConfigError(f"loss.guide={list(patterns)} holds no vectors")
        order = np.argsort(np.array(keys, dtype=np.int64), kind="stable")
        self._keys, self._places = np.array(keys, dtype=np.int64)[order], np.array(places, dtype=np.int64)[order]
        self._starts = np.cumsum([0, *(len(chunk) for chunk in self._chunks)])
        self.dimension = self._chunks[0].shape[1]

    def vectors(self, ids: Tensor) -> Tensor:
        """Of identities (n, 2), on the host, the vectors (n, G) float32, of length 1, or zeros where there is none."""
        wanted = ids[:, 0].numpy()
        found = np.searchsorted(self._keys, wanted).clip(max=len(self._keys) - 1)
        places, result = self._places[found], np.zeros((len(wanted), self.dimension), dtype=np.float32)
        hits = np.flatnonzero(self._keys[found] == wanted)
        if not len(hits) and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "no passage of this batch has a vector in loss.guide; the training data must name passages by the ids of its shards"
            )
        chunk_of = np.searchsorted(self._starts, places, side="right") - 1
        for row in hits:
            chunk = int(chunk_of[row])
            result[row] = self._chunks[chunk][places[row] - self._starts[chunk]]
        lengths = np.linalg.norm(result, axis=1, keepdims=True)
        return torch.from_numpy(result / np.where(lengths > 0, lengths, 1.0).astype(np.float32))
