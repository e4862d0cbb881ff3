"""Exact inner-product search over vectors that need not fit into memory: the reference for other indexes.

1. The corpus is read in blocks, each once; a block is scored against all queries by matrix products in
   float32 or, where a trial shows that the processor multiplies that faster, in bfloat16 (``Products``), unless its
   wider bound yields many more candidates. Both bounds hold: candidates differ, results do not.
2. A product's last bits depend on the block's shape, so it only *nominates*: every passage whose true score
   could still be among the k best, by the bound of such a product's rounding, becomes a candidate.
3. Candidates are scored again one by one in float64, rounded to float32 once, and merged by (score
   descending, id ascending).

So the result is the same bit for bit for any block size, any order of shards, and on CPU and GPU.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpr.core.errors import InputError
from dpr.core.logs import counted
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
    refuse_overflow,
)

_LEAST_QUERIES = 2  # libraries multiply by two columns faster than by one
_MANY_QUERIES = 32  # with fewer, the time goes into reading the passages
_CELL_BYTES = 1 << 22
_GROUP_ROWS = 16
_MANY_SCORES = 1 << 18
_RARE = 1024
_WORTH_THREADS = 1 << 22
_HALF_LONGEST = 1e15  # below it bfloat16 cannot overflow, and what underflows stays below _HALF_UNDERFLOW
_HALF_UNDERFLOW = 1e-20

Places = tuple[Tensor, Tensor]
"""Rows of the block, and queries of the tile."""


class Products:
    """Scores of tiles of queries and blocks of passages, in memory that is reused for every pair of them. A block is
    multiplied in cells that fit into the processor's cache. Everything else that reads a cell (row lengths,
    conversion to bfloat16, comparing scores) happens while it is there.

    Args:
        queries: (Q, D) float32, on the device where the products run.
        k: Passages to find for each query.
        block_rows, tile_rows: The largest block and tile; at most block_rows * (2 * D + 4 * tile_rows) bytes
        are held.
    """

    def __init__(self, queries: Tensor, k: int, *, block_rows: int, tile_rows: int) -> None:
        self._k = k
        self._is_on_cpu = is_cpu(queries.device)
        self._is_few = len(queries) < _MANY_QUERIES
        self._spare = max(0, _LEAST_QUERIES - len(queries))
        self._queries = torch.cat([queries, queries[:1].expand(self._spare, -1)])
        self._norms = _row_lengths(self._queries)
        self._scores = torch.empty(block_rows * (tile_rows + self._spare), device=queries.device)
        self._mask = torch.empty(self._scores.shape, dtype=torch.bool) if self._is_on_cpu else None
        self._half_fits = (
            self._is_on_cpu
            and not self._is_few
            and float(self._norms.max()) < _HALF_LONGEST
            and bfloat16_is_faster()
        )
        if self._half_fits:
            self._half_queries = self._queries.bfloat16()
            self._half_norms = _row_lengths(self._queries - self._half_queries)
            self._half_block = torch.empty(block_rows, queries.shape[1], dtype=torch.bfloat16)

    def load(self, block: Tensor, known: dict[bool, Tensor]) -> None:
        """Sets the passages (n, D) to multiply next, and what earlier searches learned about their
        lengths."""
        self._block = block
        self._known = known
        self._half = self._half_fits and len(block) > 8 * self._k
        size = len(block)
        if self._is_on_cpu and not (self._is_few and self._half in known):
            cell_bytes = 4 * _CELL_BYTES if self._is_few else _CELL_BYTES
            size = max(1024, cell_bytes // (4 * block.shape[1])) // _GROUP_ROWS * _GROUP_ROWS
        self._cells = [slice(start, min(start + size, len(block))) for start in range(0, len(block), size)]
        self._lengths = [known[self._half]] * len(self._cells) if self._half in known else []
        self._num_converted = 0

    def candidates(self, tile: slice, least: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the tile and of the block that may belong to the best, which must reach at least ``least``
        (q,).

        Raises:
            InputError: a product of a query and a passage may overflow, or one of them is not finite.
        """
        if self._spare:
            least = torch.cat([least, least.new_full((self._spare,), torch.inf)])
            tile = slice(tile.start, tile.stop + self._spare)
        places = self._named(tile, least)
        if places is None:
            self._half = self._half_fits = False
            places = self._named(tile, least)
            assert places is not None
        self._known[self._half] = self._of_block()
        rows, columns = places
        return columns.cpu().numpy(), rows.cpu().numpy()

    def multiply(self, tile: slice, number: int, out: Tensor) -> None:
        """Dot products (n, q) of a cell and a tile; the first time also computes the lengths of the cell."""
        cell = self._cells[number]
        block, queries = (
            (self._half_block, self._half_queries) if self._half else (self._block, self._queries)
        )
        if self._half and number == self._num_converted:
            block[cell] = self._block[cell]
            self._num_converted += 1
        if number == len(self._lengths):
            longest = _row_lengths(self._block[cell]).max()
            lost = (
                _row_lengths(self._block[cell] - block[cell]).max()
                if self._half
                else torch.zeros_like(longest)
            )
            self._lengths.append(torch.stack([longest, lost]))
        torch.mm(block[cell], queries[tile].T, out=out)

    def rounding_error(self, tile: slice, lengths: Tensor) -> Tensor:
        """How far a product of each query (q,) with rows of these lengths can be from the true score, in any
        order of summation.

        ``lengths`` (2,) are that of the longest row and that of the longest difference to a row in bfloat16.
        """
        dimension = self._queries.shape[1]
        bound = self._norms[tile] * lengths[0]
        refuse_overflow(float((bound * dimension).max()))
        unit = (dimension + 8) * 2.0**-23
        if (
            self._half
        ):  # of rounded factors; whoever compares the product allows for its own rounding to bfloat16
            lost = self._half_norms[tile] * lengths[0] + self._norms[tile] * lengths[1]
            return (lost + bound * unit) * (1 + 2.0**-7) + _HALF_UNDERFLOW
        if may_round_factors():
            unit += 2.0**-7 + 2.0**-15
        return bound * unit

    def _named(self, tile: slice, least: Tensor) -> Places | None:
        """Candidates; None if bfloat16 yields too many or cannot tell."""
        products = self._scores.view(torch.bfloat16 if self._half else torch.float32)
        products = products[: len(self._block) * len(least)].view(-1, len(least))
        # has the order of positive ones, is faster to compare
        scores = products.view(torch.int16) if self._half else products
        maxima = []
        for number, cell in enumerate(self._cells):
            self.multiply(tile, number, products[cell])
            maxima.append(_maxima(scores[cell]))
        error = self.rounding_error(tile, self._of_block())
        reach = least - error
        limit = 4 * self._k * len(least)
        num_found = 0
        places: list[Places] | None = []
        for is_raised in [True] if bool((least == -torch.inf).any()) else [False, True]:
            if is_raised:
                reach = torch.maximum(reach, self._reached(scores, maxima) - 2 * error)
            places = self._reaching(scores, maxima, reach)
            num_found = sum(len(rows) for rows, _ in places or ())
            if num_found <= limit:  # else the corpus is in an unlucky order
                break
        if places is None or (self._half and num_found > limit):
            return None
        rows, columns = zip(*places, strict=True)
        return torch.cat(rows), torch.cat(columns)

    def _of_block(self) -> Tensor:
        return torch.stack(self._lengths).amax(dim=0)

    def _reached(self, scores: Tensor, maxima: list[Tensor]) -> Tensor:
        """What the products of ``k`` rows of the block reach for each query (q,) at least, before they are
        rounded to bfloat16."""
        tops = torch.cat(maxima)
        reached = kth_at_least(tops if len(tops) >= 4 * self._k else scores, self._k)
        return reached - reached.abs() * 2.0**-7 if self._half else reached

    def _reaching(self, scores: Tensor, maxima: list[Tensor], reach: Tensor) -> list[Places] | None:
        """The scores that were at least ``reach`` (q,) before rounding to bfloat16; None if its bits cannot
        tell."""
        if self._half and not (bool((reach > 0).all()) and float(self._of_block()[0]) < _HALF_LONGEST):
            return None
        least = reach.bfloat16().view(torch.int16) - 1 if self._half else reach
        masks: list[Tensor | None] = [None] * len(self._cells)
        if self._mask is not None:
            masks = [self._mask[: scores.numel()].view(scores.shape)[cell] for cell in self._cells]
        with ThreadPoolExecutor(
            torch.get_num_threads()
        ) as pool:  # numpy works outside the interpreter's lock
            do = pool.map if self._is_on_cpu and scores.numel() >= _WORTH_THREADS else map
            return list(
                do(
                    lambda cell, tops, mask: _places(scores[cell], tops, least, mask, cell.start),
                    self._cells,
                    maxima,
                    masks,
                )
            )


def is_cpu(device: torch.device) -> bool:
    """Whether numpy can work in the memory of its tensors."""
    return device.type == "cpu"


def may_round_factors() -> bool:
    """Whether torch may round the factors of a float32 product to TF32 or bfloat16 first."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # torch.backends set it, not for all devices alike
        return True


def _places(scores: Tensor, maxima: Tensor, least: Tensor, mask: Tensor | None, first_row: int) -> Places:
    """Where the scores (n, q) of a cell are at least ``least`` (q,)."""
    num_queries = len(least)
    group_rows = len(scores) // len(maxima)
    places = _true_places(maxima, least, mask)
    if (
        group_rows > 1 and len(places) * _RARE > scores.numel()
    ):  # then looking at all is faster than jumping from group to group
        places = _true_places(scores, least, mask)
        group_rows = 1
    rows, columns = _divided(places, num_queries)
    if group_rows > 1:
        inside = rows[:, None] * group_rows + torch.arange(group_rows, device=rows.device)
        hits = (
            (scores.view(-1)[inside * num_queries + columns[:, None]] >= least[columns, None])
            .view(-1)
            .nonzero()[:, 0]
        )
        rows = inside.view(-1)[hits]
        columns = columns[_divided(hits, group_rows)[0]]
    return rows + first_row, columns


def _maxima(scores: Tensor) -> Tensor:
    """Of groups of rows (n / g, q), or the scores themselves where it would not pay."""
    if len(scores) % _GROUP_ROWS or scores.numel() < _MANY_SCORES:
        return scores
    return scores.unflatten(0, (-1, _GROUP_ROWS)).amax(dim=1)


def _true_places(scores: Tensor, least: Tensor, mask: Tensor | None) -> Tensor:
    """Where a matrix (n, q) is at least ``least`` (q,): places counted row by row. A CPU works in the memory
    of ``mask``."""
    if mask is None:
        return (scores >= least).view(-1).nonzero()[:, 0]
    where = mask[: len(scores)].numpy()
    np.greater_equal(scores.numpy(), least.numpy(), out=where)  # numpy is several times faster in both steps
    return torch.from_numpy(np.flatnonzero(where))


def kth_at_least(scores: Tensor, k: int) -> Tensor:
    """A score (q,) that at least ``k`` rows of each column (n, q) reach, and few more do; -inf where there
    are no more than ``k`` rows.

    It is the k-th largest of the maxima of groups of rows, which takes one reading of the matrix. The block
    alone then holds k passages that truly score at least this product - error. bfloat16 may come as int16;
    then a result below zero means nothing.
    """
    rows = scores.shape[0]
    width = max(1, rows // (4 * k))
    maxima = scores[: rows // width * width].unflatten(0, (-1, width)).amax(dim=1) if width > 1 else scores
    if maxima.dtype == torch.int16:
        maxima = maxima.view(torch.bfloat16).float()
    if rows <= k:
        return maxima.new_full((scores.shape[1],), -torch.inf)
    return maxima.T.contiguous().topk(k, dim=1).values[:, -1]


@cache
def bfloat16_is_faster() -> bool:
    """Whether this processor multiplies bfloat16 at least 1.3 times as fast as float32, by a trial of some
    milliseconds."""
    seconds = []
    for kind in (torch.float32, torch.bfloat16):
        left = torch.ones(1024, 256, dtype=kind)
        right = torch.ones(256, 512, dtype=kind)
        result = torch.empty(1024, 512, dtype=kind)
        rounds = []
        for _ in range(4):
            start = time.perf_counter()
            torch.mm(left, right, out=result)
            rounds.append(time.perf_counter() - start)
        seconds.append(min(rounds))
    return seconds[0] > 1.3 * seconds[1]


def _row_lengths(vectors: Tensor) -> Tensor:
    """Of each row, and never less: squares of shorter ones underflow."""
    return torch.linalg.vector_norm(vectors, dim=1) + 1e-18


def _divided(places: Tensor, by: int) -> Places:
    quotient = torch.div(places, by, rounding_mode="floor")
    return quotient, places - quotient * by


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
        self.block_rows = block_rows
        self.query_rows = query_rows
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
        for tile in counted(self._tiles, "searching", unit="blocks of questions"):
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
