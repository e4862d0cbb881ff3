"""The negative log-likelihood as a term of the objective, with a false-negative filter, and the vectors of
another model that this filter compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.logs import get_logger, warn_once
from dpr.losses.candidates import FalseNegativeFilter
from dpr.losses.nll import nll_of_columns
from dpr.losses.protocol import CONTEXTS, GlobalBatch, LossResult, Term

logger = get_logger(__name__)


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


class Nll(Term):
    """The InfoNCE loss with in-batch negatives: -log softmax of a question's positive among the candidates of
    the global batch.

    This is the default objective, weighted by ``loss.nll_weight``. From "Dense Passage Retrieval for
    Open-Domain Question Answering" (Karpukhin et al., 2020). The vectors of ``false_negatives`` are a
    false-negative filter: passages too similar to the positive are masked. The term warns once of a batch in which no
    passage has such a vector.

        >>> nll = Nll(false_negatives=None, threshold=0.9, max_scores=1 << 22)
        >>> nll.needs
        frozenset({'contexts'})

    Relatives: ``BiEncoderNllLoss`` is the same as a whole loss; ``Symmetric`` is the other direction.
    """

    needs = frozenset({CONTEXTS})

    def __init__(self, *, false_negatives: StoredVectors | None, threshold: float, max_scores: int) -> None:
        self._vectors = false_negatives
        self._threshold = threshold
        self._max_scores = max_scores

    def content(self) -> Mapping[str, str]:
        return {} if self._vectors is None else {"guide": self._vectors.fingerprint}

    def __call__(self, questions: Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch) -> LossResult:
        false_negatives = None
        if self._vectors is not None:
            is_found, found = self._vectors.find(global_batch.ids)
            if not is_found.any():
                warn_once(
                    logger,
                    "no passage of this batch has a vector in loss.guide; the training data must name passages"
                    " by the ids of its shards",
                )
            lengths = np.linalg.norm(found, axis=1, keepdims=True)
            found = found / np.where(lengths > 0, lengths, 1.0).astype(np.float32)
            vectors = on_device(torch.from_numpy(found), questions.device)
            false_negatives = FalseNegativeFilter(
                vectors[global_batch.candidates.target], vectors, self._threshold
            )
        return nll_of_columns(
            questions,
            global_batch.contexts,
            global_batch.candidates,
            global_batch.temperature,
            false_negatives=false_negatives,
            max_scores=self._max_scores,
        )
