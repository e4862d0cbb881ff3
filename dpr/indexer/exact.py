"""Exact inner-product search over vectors that need not fit into memory: the reference for other indexes.

1. The corpus is read in blocks, each once; a block is scored against all queries by matrix products in
   float32 or, where the processor multiplies that faster, in bfloat16 (dpr/indexer/products.py).
2. A product's last bits depend on the block's shape, so it only *nominates*: every passage whose true score
   could still be among the k best, by the bound of such a product's rounding, becomes a candidate.
3. Candidates are scored again one by one in float64, rounded to float32 once, and merged by (score
   descending, id ascending).

So the result is the same bit for bit for any block size, any order of shards, and on CPU and GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpr.core.errors import InputError
from dpr.indexer.products import Products
from dpr.indexer.ranking import RunningTopK, SearchResult, encode_ids, is_among
from dpr.indexer.registry import Index
from dpr.indexer.vectors import (
    ArraySource,
    VectorSource,
    as_tensor,
    blocks,
    check_finite,
    check_queries,
    common_dimension,
    paired_dots,
)


class ExactIndex(Index):
    """Searches shards of vectors, or arrays, by brute force.

    Args:
        sources: Vector shards, all of one dimension. Ids must be unique, and vectors must not change while
            the index is used, because the first search measures the lengths of a block for all later ones.
        device: Where the matrix products run; the result does not depend on it.
        block_rows, query_rows: Passages and queries that are compared at a time; block_rows * (6 * D + 5 *
        query_rows) bytes are in use.
    """

    is_saved = False  # it is the vectors themselves
    can_filter = True

    def __init__(
        self,
        sources: Sequence[VectorSource],
        *,
        device: torch.device | str = "cpu",
        block_rows: int = 65536,
        query_rows: int = 512,
    ) -> None:
        self.sources = list(sources)
        self.dimension = common_dimension(sources)
        self.device = torch.device(device)
        self.block_rows, self.query_rows = block_rows, query_rows
        self._lengths: defaultdict[int, dict[bool, Tensor]] = defaultdict(dict)

    @classmethod
    def build(
        cls, corpus: Sequence[VectorSource], settings: Any = None, *, device: torch.device | str = "cpu"
    ) -> ExactIndex:
        return cls(corpus, device=device)

    @property
    def num_passages(self) -> int:
        return sum(source.num_vectors for source in self.sources)

    @classmethod
    def from_arrays(
        cls,
        ids: Sequence[str],
        vectors: np.ndarray,
        *,
        device: torch.device | str = "cpu",
        block_rows: int = 65536,
    ) -> ExactIndex:
        if len(ids) != vectors.shape[0]:
            raise ValueError(f"{len(ids)} ids for {vectors.shape[0]} vectors")
        return cls([ArraySource(encode_ids(ids), vectors)], device=device, block_rows=block_rows)

    def among(self, ids: np.ndarray) -> ExactIndex:
        chosen = [_Chosen(source, ids) for source in self.sources]
        return ExactIndex(chosen, device=self.device, block_rows=self.block_rows, query_rows=self.query_rows)

    def search(self, queries: np.ndarray, k: int) -> SearchResult:
        """The ``k`` passages with the largest dot product for each query (Q, D), or all of them where there
        are fewer.

        Raises:
            InputError: a query or passage vector holds NaN or infinity, or is so long that a float32 score
            overflows.
        """
        queries = check_queries(queries, self.dimension)
        most = max(self.num_passages, 1)
        sizes = {"block_rows": min(self.block_rows, most), "query_rows": self.query_rows}
        search = RunningSearch(queries, min(k, most), device=self.device, **sizes)
        if len(queries):
            for number, (ids, vectors) in enumerate(blocks(self.sources, self.block_rows)):
                search.add(ids, vectors, self._lengths[number])
        return search.best.result()


class RunningSearch:
    """The exact search of a corpus whose blocks come one after the other and are not kept; ``best`` is what
    it has found so far.

    Args:
        queries: (Q, D) float32, finite.
        k: Passages to find for each query.
        block_rows, query_rows: The largest block, and the queries that it is compared with at a time, as in
        ``ExactIndex``.
    """

    def __init__(
        self,
        queries: np.ndarray,
        k: int,
        *,
        device: torch.device | str = "cpu",
        block_rows: int = 65536,
        query_rows: int = 512,
    ) -> None:
        self.best = RunningTopK(len(queries), k)
        self._queries, self._device = queries, torch.device(device)
        self._tiles = [
            slice(start, min(start + query_rows, len(queries)))
            for start in range(0, len(queries), query_rows)
        ]
        if len(queries):
            on_device = torch.from_numpy(queries).to(device)
            self._products = Products(
                on_device, k, block_rows=block_rows, tile_rows=min(query_rows, len(queries))
            )

    def add(self, ids: np.ndarray, vectors: np.ndarray, lengths: dict[bool, Tensor] | None = None) -> None:
        """Compares the queries with a block: ids (n,) of fixed-width bytes, vectors (n, D) float32.

        ``lengths``: what an earlier search has learned about the block, which this one adds to.

        Raises:
            InputError: a vector holds NaN or infinity, or is so long that a float32 score overflows.
        """
        if not self._tiles or not len(ids):
            return
        self._products.load(as_tensor(vectors).to(self._device), {} if lengths is None else lengths)
        for tile in self._tiles:
            least = torch.from_numpy(self.best.least(tile).copy()).to(self._device)
            try:
                rows, columns = self._products.candidates(tile, least)
            except InputError:
                check_finite(ids, vectors)  # names the vector, if it is one
                raise
            self.best.add(
                rows + tile.start, paired_dots(self._queries[tile], rows, vectors, columns), ids[columns]
            )


@dataclass(frozen=True)
class _Chosen:
    """The vectors of a source whose ids are among ``ids``, read chunk by chunk."""

    source: VectorSource
    ids: np.ndarray

    @cached_property
    def num_vectors(self) -> int:
        return sum(int(is_among(ids, self.ids).sum()) for ids, _ in self.source.chunks())

    @property
    def dimension(self) -> int:
        return self.source.dimension

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for ids, vectors in self.source.chunks():
            is_chosen = is_among(ids, self.ids)
            if is_chosen.any():
                yield ids[is_chosen], vectors[is_chosen]
