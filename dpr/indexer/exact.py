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
from dpr.indexer.vectors import ArraySource, VectorSource, blocks, check_queries, paired_dots


class ExactIndex:
    """Searches shards of vectors, or arrays, by brute force.

    Args:
        sources: Vector shards, all of one dimension. Their ids must differ.
        device: Where the matrix products run; the result does not depend on it.
        block_rows, query_rows: Passages and queries per matrix product; 4 * block_rows * (D + query_rows) bytes are in use at a time.
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
        for ids, vectors in blocks(self.sources, self.block_rows):
            block = torch.from_numpy(vectors).to(self.device)
            error = self._rounding_error(query_norms, block)
            for tile in tiles:
                least = torch.from_numpy(best.least(tile).copy()).to(self.device)
                found = _candidates(on_device[tile] @ block.T, error[tile], least, best.k).cpu().numpy()
                rows, columns = found[:, 0] + tile.start, found[:, 1]
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


def _candidates(scores: Tensor, error: Tensor, least: Tensor, k: int) -> Tensor:
    """(query, passage) pairs (n, 2) that may belong to the k best, given scores (q, n) that are off by at most ``error`` (q,)."""
    nominated = scores >= (least - error)[:, None]
    if scores.shape[1] > k and int(nominated.sum()) > 2 * k * scores.shape[0]:
        # The block alone holds k passages that truly score at least (its k-th largest product - error).
        kth = scores.topk(k, dim=1).values[:, -1]
        nominated &= scores >= (kth - 2 * error)[:, None]
    return nominated.nonzero()
