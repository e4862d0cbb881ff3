"""Token rows from the singular value decomposition of a corpus: what a static encoder may begin with in place
of random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from dpr.formats.token_frequencies import TokenFrequencies

_K1, _B = 0.9, 0.4  # the defaults of encoder.bm25_k1 and bm25_b
_ROUNDS = 3


class PassageSample:
    """The tokens of a corpus's passages and how often each stands there. Of more than ``most`` passages it
    keeps every 2nd, 4th, ..., so that memory is bounded."""

    def __init__(self, most: int = 50_000) -> None:
        self._most, self._seen, self._every = most, 0, 1
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, tokens: np.ndarray, times: np.ndarray) -> None:
        """The next passage: its distinct tokens, in order, and how often each occurs."""
        if self._seen % self._every == 0:
            self._kept.append((tokens.astype(np.int32), times.astype(np.float32)))
        if len(self._kept) > self._most:
            self._kept, self._every = self._kept[::2], 2 * self._every
        self._seen += 1

    def weighted(self, frequencies: TokenFrequencies) -> Any:
        """The sparse matrix (passages, V) whose product with a question's is BM25's score, as ``bm25``
        pooling divides it between them."""
        tokens, times = (np.concatenate(column) for column in zip(*self._kept, strict=True))
        sizes = [len(held) for held, _ in self._kept]
        lengths = np.array([counts.sum() for _, counts in self._kept])
        saturation = np.repeat(_K1 * (1 - _B + _B * lengths / frequencies.mean_length), sizes)
        values = times / (times + saturation) * np.sqrt(frequencies.idf())[tokens]
        shape = (len(sizes), len(frequencies.passages_with))
        return csr_matrix((values.astype(np.float32), tokens, np.cumsum([0, *sizes])), shape=shape)


def svd_rows(sample: PassageSample, frequencies: TokenFrequencies, width: int) -> Tensor:
    """The first ``width`` right singular vectors of the weighted passages, (V, width), the strongest first.

    Of all tables so wide, this one keeps most of the passages' weights. By randomised subspace iteration from
    a fixed seed; the dense matrix never exists. ``width`` is at most V.
    """
    matrix = sample.weighted(frequencies)

    def multiplied(basis: Tensor) -> Tensor:
        return torch.from_numpy(matrix.T @ (matrix @ basis.numpy()))

    basis = torch.randn(matrix.shape[1], width, generator=torch.Generator().manual_seed(0))
    for _ in range(_ROUNDS):
        basis = torch.linalg.qr(multiplied(basis)).Q
    products = basis.T @ multiplied(basis)
    return basis @ torch.linalg.eigh((products + products.T) / 2).eigenvectors.flip(1)
