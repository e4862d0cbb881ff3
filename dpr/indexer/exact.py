"""Exact inner-product search over vectors that need not fit into memory: the reference for other indexes.

1. The corpus is read in blocks, each once; a block is scored against all queries by matrix products in float32.
2. A product's last bits depend on the block's shape, so it only *nominates*: every passage whose true score
   could still be among the k best, by the bound of such a product's rounding, becomes a candidate.
3. Candidates are scored again one by one in float64, rounded to float32 once, and merged by (score
   descending, id ascending).

So the result is the same bit for bit for any block size, any order of shards, on CPU and GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpr.core.batch import on_device
from dpr.core.errors import InputError
from dpr.core.logs import counted
from dpr.indexer.ranking import RunningTopK, SearchResult, is_among
from dpr.indexer.registry import Index
from dpr.indexer.vectors import (
    VectorSource,
    as_tensor,
    blocks,
    check_finite,
    check_queries,
    common_dimension,
    paired_dots,
    refuse_overflow,
)

_TILE_ROWS = 512
"""Queries that are compared with a block at a time."""


class RunningSearch:
    """Exact search of a corpus whose blocks arrive one after the other and are not kept. ``best`` holds the
    best passages so far.

    Args:
        queries: (Q, D) float32, finite.
        k: Passages to find for each query.
        block_rows: The largest block, as in ``ExactIndex``.
    """

    def __init__(
        self, queries: np.ndarray, k: int, *, device: torch.device | str = "cpu", block_rows: int = 65536
    ) -> None:
        self.best = RunningTopK(len(queries), k)
        self._queries = queries
        self._device = torch.device(device)
        self._on_device = torch.from_numpy(queries).to(device)
        self._norms = _row_lengths(self._on_device)
        self._tiles = [slice(start, start + _TILE_ROWS) for start in range(0, len(queries), _TILE_ROWS)]
        self._scores = torch.empty(block_rows * min(_TILE_ROWS, len(queries)), device=device)

    def add(self, ids: np.ndarray, vectors: np.ndarray, longest: Tensor | None = None) -> Tensor | None:
        """Compares the queries with a block: ids (n,) of fixed-width bytes, vectors (n, D) float32.

        ``longest`` is the length of the block's longest vector, as returned by an earlier search.

        Raises:
            InputError: a vector holds NaN or infinity, or is so long that a float32 score overflows.
        """
        if not self._tiles or not len(ids):
            return longest
        block = as_tensor(vectors).to(self._device)
        if longest is None:
            longest = _row_lengths(block).max()
        for tile in counted(self._tiles, "searching", unit="blocks of questions"):
            try:
                error = rounding_error(self._norms[tile], longest, block.shape[1])
            except InputError:
                check_finite(ids, vectors)  # names the vector, if it is one
                raise
            rows, columns = self._candidates(block, tile, error)
            self.best.add(
                rows + tile.start, paired_dots(self._queries[tile], rows, vectors, columns), ids[columns]
            )
        return longest

    def _candidates(self, block: Tensor, tile: slice, error: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of the tile and of the block that may belong to the best, by products that are off
        by at most ``error`` (q,)."""
        k = self.best.k
        num_queries = len(error)
        scores = self._scores[: len(block) * num_queries].view(len(block), num_queries)
        multiply(block, self._on_device[tile], scores)
        least = self.best.least(tile)
        reach = on_device(torch.from_numpy(least.copy()), self._device) - error
        if np.isinf(least).any():  # a list is not full yet
            reach = torch.maximum(reach, kth_at_least(scores, k) - 2 * error)
        places = _true_places(scores, reach)
        if len(places) > 4 * k * num_queries:  # the corpus is in an unlucky order
            reach = torch.maximum(reach, kth_at_least(scores, k) - 2 * error)
            places = _true_places(scores, reach)
        columns, rows = np.divmod(places, num_queries)
        return rows, columns


def multiply(block: Tensor, queries: Tensor, out: Tensor) -> None:
    """Writes the dot products (n, q) of a block and queries to ``out``. Libraries multiply a tall matrix by a
    small one faster than the small one by the tall one's transpose."""
    torch.mm(block, queries.T, out=out)


def rounding_error(norms: Tensor, longest: Tensor, dimension: int) -> Tensor:
    """Returns how far a product of each query (q,), of these lengths, can be from the true score, in any
    order of summation. ``longest`` is the length of the longest row."""
    bound = norms * longest
    refuse_overflow(float((bound * dimension).max()))
    unit = (dimension + 8) * 2.0**-23
    if may_round_factors():
        unit += 2.0**-7 + 2.0**-15
    return bound * unit


def may_round_factors() -> bool:
    """True if torch may first round the factors of a float32 product to TF32 or bfloat16."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # torch.backends set it, not for all devices alike
        return True


def kth_at_least(scores: Tensor, k: int) -> Tensor:
    """Returns a score (q,) that at least ``k`` rows of each column (n, q) reach, and few more do; -inf if
    there are no more than ``k`` rows.

    It is the k-th largest of the maxima of groups of rows, which needs a single pass over the matrix. So the
    block alone holds k passages whose true score is at least this product - error.
    """
    rows = scores.shape[0]
    if rows <= k:
        return scores.new_full((scores.shape[1],), -torch.inf)
    width = max(1, rows // (4 * k))
    maxima = scores[: rows // width * width].unflatten(0, (-1, width)).amax(dim=1)
    return maxima.T.contiguous().topk(k, dim=1).values[:, -1]


def _true_places(scores: Tensor, least: Tensor) -> np.ndarray:
    """Returns the places where a matrix (n, q) is at least ``least`` (q,), counted row by row."""
    if scores.is_cpu:  # numpy is several times faster
        return np.flatnonzero(scores.numpy() >= least.numpy())
    places: np.ndarray = (scores >= least).view(-1).nonzero()[:, 0].cpu().numpy()
    return places


def _row_lengths(vectors: Tensor) -> Tensor:
    """Returns the length of each row, never too small: squares of very short rows underflow."""
    return torch.linalg.vector_norm(vectors, dim=1) + 1e-18


class ExactIndex(Index):
    """Searches shards of vectors, or arrays, by brute force.

    Args:
        sources: Vector shards, all of one dimension. Ids must be unique, and vectors must not change while
            the index is used, because the first search measures the lengths of a block for all later ones.
        device: Where the matrix products run; the result does not depend on it.
        block_rows: Passages compared with 512 queries at a time, in block_rows * (4 * D + 5 * 512) bytes.
    """

    is_saved = False  # it is the vectors themselves
    can_filter = True

    def __init__(
        self, sources: Sequence[VectorSource], *, device: torch.device | str = "cpu", block_rows: int = 65536
    ) -> None:
        self.sources = list(sources)
        self.dimension = common_dimension(sources)
        self.device = torch.device(device)
        self.block_rows = block_rows
        self._chosen: np.ndarray | None = None
        self._longest: dict[int, Tensor | None] = {}

    @classmethod
    def build(
        cls, corpus: Sequence[VectorSource], settings: Any = None, *, device: torch.device | str = "cpu"
    ) -> ExactIndex:
        return cls(corpus, device=device)

    @property
    def num_passages(self) -> int:
        return sum(source.num_vectors for source in self.sources)

    def among(self, ids: np.ndarray) -> ExactIndex:
        view = copy.copy(self)
        view._chosen = ids
        view._longest = {}
        return view

    def search(self, queries: np.ndarray, k: int) -> SearchResult:
        """Returns the ``k`` passages with the largest dot product for each query (Q, D), or all passages if
        there are fewer.

        Raises:
            InputError: a query or passage vector holds NaN or infinity, or is so long that a float32 score
            overflows.
        """
        queries = check_queries(queries, self.dimension)
        most = max(self.num_passages, 1)
        search = RunningSearch(
            queries, min(k, most), device=self.device, block_rows=min(self.block_rows, most)
        )
        if len(queries):
            for number, (ids, vectors) in enumerate(blocks(self.sources, self.block_rows)):
                if self._chosen is not None:
                    is_chosen = is_among(ids, self._chosen)
                    ids = ids[is_chosen]
                    vectors = vectors[is_chosen]
                self._longest[number] = search.add(ids, vectors, self._longest.get(number))
        return search.best.result()
