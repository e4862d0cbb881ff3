"""Exact inner-product search over vectors that need not fit into memory: the truth other indexes are judged by.

1. The corpus is read in blocks, each once; a block is scored against all queries by matrix products in float32.
2. A product's last bits depend on the block's shape, so it only *nominates*: every passage whose true score could still be among the
   k best, by the rounding bound of a float32 dot product, becomes a candidate.
3. Candidates are scored again one by one in float64, rounded to float32 once, and merged by (score descending, id ascending).

So the result is the same bit for bit for any block size, any order of shards, and on CPU and GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpr.core.errors import InputError
from dpr.indexer.ranking import RunningTopK, SearchResult, encode_ids
from dpr.indexer.vectors import ArraySource, VectorSource, as_tensor, blocks, check_finite, check_queries, paired_dots

_LEAST_QUERIES = 4


class ExactIndex:
    """Searches shards of vectors, or arrays, by brute force.

    Args:
        sources: Vector shards, all of one dimension. Their ids must differ.
        device: Where the matrix products run; the result does not depend on it.
        block_rows, query_rows: Passages and queries per matrix product; block_rows * (4 * D + 5 * query_rows) bytes are in use at a time.
    """

    def __init__(
        self, sources: Sequence[VectorSource], *, device: torch.device | str = "cpu", block_rows: int = 32768, query_rows: int = 512
    ) -> None:
        dimensions = {source.dimension for source in sources}
        if len(dimensions) != 1:
            found = f"vectors of dimensions {sorted(dimensions)}" if dimensions else "no vectors to search"
            raise InputError(found, expected="one dimension")
        self.sources = list(sources)
        self.dimension = dimensions.pop()
        self.num_vectors = sum(source.num_vectors for source in sources)
        self.device = torch.device(device)
        self.block_rows, self.query_rows = block_rows, query_rows

    @classmethod
    def from_arrays(
        cls, ids: Sequence[str], vectors: np.ndarray, *, device: torch.device | str = "cpu", block_rows: int = 32768
    ) -> ExactIndex:
        if len(ids) != vectors.shape[0]:
            raise ValueError(f"{len(ids)} ids for {vectors.shape[0]} vectors")
        return cls([ArraySource(encode_ids(ids), vectors)], device=device, block_rows=block_rows)

    def search(self, queries: np.ndarray, k: int) -> SearchResult:
        """The ``k`` passages with the largest dot product for each query (Q, D), or all of them where there are fewer.

        Raises:
            InputError: a query or passage vector holds NaN or infinity, or is so long that a float32 score overflows.
        """
        queries = check_queries(queries, self.dimension)
        best = RunningTopK(queries.shape[0], min(k, max(self.num_vectors, 1)))
        if not queries.shape[0]:
            return best.result()
        tiles = [slice(start, start + self.query_rows) for start in range(0, queries.shape[0], self.query_rows)]
        on_device = torch.from_numpy(queries).to(self.device)
        query_norms = torch.linalg.vector_norm(on_device, dim=1)
        products = _Products(self.device, min(self.block_rows, max(self.num_vectors, 1)), min(self.query_rows, len(queries)))
        for ids, vectors in blocks(self.sources, self.block_rows):
            block = as_tensor(vectors).to(self.device)
            try:
                error = self._rounding_error(query_norms, block)
            except InputError:
                check_finite(ids, vectors)  # which vector it is, where one is to blame
                raise
            for tile in tiles:
                least = torch.from_numpy(best.least(tile).copy()).to(self.device)
                rows, columns = products.candidates(on_device[tile], block, error[tile], least, best.k)
                rows += tile.start
                best.add(rows, paired_dots(queries, rows, vectors, columns), ids[columns])
        return best.result()

    def _rounding_error(self, query_norms: Tensor, block: Tensor) -> Tensor:
        """How far a float32 product of each query with any row of the block can be from the true score, whatever the order of summation."""
        bound = query_norms * torch.linalg.vector_norm(block, dim=1).max()
        if not bool(torch.isfinite(bound * self.dimension).all()):
            raise InputError("the product of a query and a passage vector is too large for float32", hint="the model has diverged")
        unit = (self.dimension + 8) * 2.0**-23
        if torch.get_float32_matmul_precision() != "highest":
            unit += 2.0**-7  # inputs may be rounded to TF32 or bfloat16 first
        return bound * unit


class _Products:
    """Scores of a tile of queries and a block of passages, in memory that is used again for every pair of them."""

    def __init__(self, device: torch.device, block_rows: int, query_rows: int) -> None:
        size = block_rows * max(query_rows, _LEAST_QUERIES)
        self._scores = torch.empty(size, device=device)
        self._nominated = torch.empty(size, dtype=torch.bool, device=device)

    def candidates(self, queries: Tensor, block: Tensor, error: Tensor, least: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of queries and of the block that may belong to the k best, given products that are off by at most ``error`` (q,)."""
        scores = self.multiply(queries, block)
        nominated = self._nominated[: scores.numel()].view(scores.shape)
        reach = least - error
        if bool(torch.isinf(least).any()):
            reach = torch.maximum(reach, _kth_at_least(scores, k) - 2 * error)
        found = _true_places(torch.ge(scores, reach, out=nominated))
        if len(found) > 4 * k * len(queries):  # a corpus in an unlucky order
            reach = torch.maximum(reach, _kth_at_least(scores, k) - 2 * error)
            found = _true_places(torch.ge(scores, reach, out=nominated))
        return found % len(queries), found // len(queries)

    def multiply(self, queries: Tensor, block: Tensor) -> Tensor:
        """Dot products (n, q), valid until the next call.

        Libraries multiply a tall matrix by a small one faster than the small one by the tall one's transpose, and by a few columns faster
        than by one.
        """
        num_queries = len(queries)
        if num_queries < _LEAST_QUERIES:
            queries = torch.cat([queries, queries[:1].expand(_LEAST_QUERIES - num_queries, -1)])
        scores = self._scores[: len(block) * len(queries)].view(len(block), len(queries))
        return torch.mm(block, queries.T, out=scores)[:, :num_queries]


def _kth_at_least(scores: Tensor, k: int) -> Tensor:
    """A score (q,) that at least ``k`` rows of each column (n, q) reach, and few more do; -inf where there are no more than ``k`` rows.

    It is the k-th largest of the maxima of groups of rows, which takes one reading of the matrix. The block alone then holds k passages
    that truly score at least this product - error.
    """
    rows = scores.shape[0]
    if rows <= k:
        return scores.new_full((scores.shape[1],), -torch.inf)
    width = max(1, rows // (8 * k))
    groups = rows // width
    maxima = scores[: groups * width].unflatten(0, (groups, width)).amax(dim=1)
    return maxima.T.contiguous().topk(k, dim=1).values[:, -1]


def _true_places(mask: Tensor) -> np.ndarray:
    """Places of the true elements of a contiguous matrix, counted row by row."""
    if mask.device.type == "cpu":
        return np.flatnonzero(mask.numpy())  # several times faster than torch's
    places: np.ndarray = mask.view(-1).nonzero()[:, 0].cpu().numpy()
    return places
