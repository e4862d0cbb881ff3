"""Results of every index, the one tie rule, and the fusion of two rankings.

A search returns ``(scores, ids)``: ``scores`` (Q, K) float32 with K the longest list found, ``ids`` one list
per query. Order is by score descending, then id ascending (code point order). A list is shorter than
requested if there is nothing more to find; its missing scores are -inf.

Scores of a dense model and of BM25 have different scales, which also differ from question to question. So a
weighted sum takes them normalised per question, over the passages each side listed: the best passage of a
list gets 1, its last 0. A passage that a side did not list gets 0 there, because that side ranked it no
higher than its last. Lists in which all scores are equal get 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from dpr.formats.packed_ids import PackedIds, pack_ids

Ranking = list[tuple[str, float]]
"""Passage ids with scores, best first."""

SearchResult = tuple[np.ndarray, list[list[str]]]

_PACKED_AT_ONCE = 1 << 13  # as wide as the longest of them


def encode_ids(ids: Sequence[str]) -> np.ndarray:
    """Returns ids as fixed-width UTF-8 bytes, whose byte order is the strings' code point order."""
    return np.array([item.encode() for item in ids], dtype=bytes)


def decode_ids(ids: np.ndarray) -> list[str]:
    return [item.decode() for item in ids.tolist()]


def packed_ids(ids: Iterable[str]) -> PackedIds:
    """Returns ids in the room that their bytes take, read as a stream."""
    rest = iter(ids)
    chunks = []
    while some := list(islice(rest, _PACKED_AT_ONCE)):
        chunks.append(encode_ids(some))
    return PackedIds(pack_ids(lambda: chunks))


def is_among(ids: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Returns which of ``ids`` (n,) are in ``chosen``, which is ascending; both of fixed-width bytes."""
    if chosen.dtype.itemsize > ids.dtype.itemsize:  # comparing would make all of ``ids`` as wide
        chosen = chosen[np.char.str_len(chosen) <= ids.dtype.itemsize].astype(ids.dtype)
    if not len(chosen):
        return np.zeros(len(ids), dtype=bool)
    return np.asarray(chosen[np.minimum(np.searchsorted(chosen, ids), len(chosen) - 1)] == ids)


class RunningTopK:
    """Best ``k`` passages of each of ``num_queries`` queries so far, regardless of the order of the candidates."""

    def __init__(self, num_queries: int, k: int) -> None:
        if k < 1:
            raise ValueError(f"k={k}; at least one passage must be requested")
        self.k = k
        self._scores = np.full((num_queries, k), -np.inf, dtype=np.float32)
        self._ids = np.zeros((num_queries, k), dtype="S1")
        self._counts = np.zeros(num_queries, dtype=np.int64)

    def least(self, rows: slice) -> np.ndarray:
        """Returns the score a candidate must reach to enter, -inf while a list is not full."""
        return self._scores[rows, -1]

    def add(self, rows: np.ndarray, scores: np.ndarray, ids: np.ndarray) -> None:
        """Offers candidates: query row, score and id of each."""
        reaching = scores >= self._scores[rows, -1]
        rows = rows[reaching]
        scores = scores[reaching]
        ids = ids[reaching]
        if not len(rows):
            return
        offered = np.bincount(rows, minlength=len(self._counts)) > 0
        touched = np.flatnonzero(offered)
        group = (np.cumsum(offered) - 1)[rows]
        held = np.arange(self.k)[None, :] < self._counts[touched][:, None]
        group = np.concatenate([np.nonzero(held)[0], group])
        scores = np.concatenate([self._scores[touched][held], scores])
        ids = np.concatenate([self._ids[touched][held], ids])
        order = _best_first(group, scores, ids)
        group = group[order]
        scores = scores[order]
        ids = ids[order]
        sizes = np.bincount(group, minlength=len(touched))
        column = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        kept = column < self.k
        if ids.dtype.itemsize > self._ids.dtype.itemsize:
            self._ids = self._ids.astype(ids.dtype)
        self._scores[touched[group[kept]], column[kept]] = scores[kept]
        self._ids[touched[group[kept]], column[kept]] = ids[kept]
        self._counts[touched] = np.minimum(sizes, self.k)

    def part(self, rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the lists of some queries: scores (q, k), ids (q, k) of fixed-width bytes, and the number
        of entries that count (q,)."""
        return self._scores[rows], self._ids[rows], self._counts[rows]

    def add_part(self, first: int, scores: np.ndarray, ids: np.ndarray, counts: np.ndarray) -> None:
        """Offers the lists of another search of the same queries, those from number ``first`` on, in the form
        of ``part``."""
        rows, places = np.nonzero(np.arange(scores.shape[1])[None, :] < counts[:, None])
        self.add(rows + first, scores[rows, places], ids[rows, places])

    def result(self) -> SearchResult:
        longest = int(self._counts.max(initial=0))
        return self._scores[:, :longest].copy(), [
            decode_ids(row[:count]) for row, count in zip(self._ids, self._counts, strict=True)
        ]


def _best_first(group: np.ndarray, scores: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns the order by group, then score descending, then id. Ids are slow to compare, so they are
    compared only where scores tie."""
    order = np.lexsort((-scores, group))
    ties = (np.diff(group[order]) == 0) & (np.diff(scores[order]) == 0)
    if ties.any():
        tied = np.zeros(len(order), dtype=bool)
        tied[1:] |= ties
        tied[:-1] |= ties
        part = order[tied]
        order[tied] = part[np.lexsort((ids[part], -scores[part], group[part]))]
    return order


def to_rankings(result: SearchResult) -> list[Ranking]:
    """Returns one ranking per query."""
    scores, ids = result
    return [
        list(zip(keys, row[: len(keys)].tolist(), strict=True)) for keys, row in zip(ids, scores, strict=True)
    ]


def ids_in(rankings: Iterable[Ranking]) -> set[str]:
    """Returns the ids of all passages in rankings."""
    return {passage for ranking in rankings for passage, _ in ranking}


def fuse_linear(
    first: Sequence[Ranking], second: Sequence[Ranking], *, weight: float, k: int
) -> list[Ranking]:
    """Returns the ``k`` best passages of each question by ``weight`` times the first side's normalised score
    plus ``1 - weight`` times the second's. A side of weight 0 gives no passages: they would follow those of
    the other side in a meaningless order."""
    fused = []
    for ours, theirs in zip(first, second, strict=True):
        left = _normalised(ours)
        right = _normalised(theirs)
        listed = (left if weight > 0 else {}) | (right if weight < 1 else {})
        ids = sorted(listed)  # equal scores stay in this order
        scores = np.array([weight * left.get(key, 0.0) + (1.0 - weight) * right.get(key, 0.0) for key in ids])
        best = np.argsort(-scores, kind="stable")[:k].tolist()
        fused.append([(ids[place], float(scores[place])) for place in best])
    return fused


def _normalised(ranking: Ranking) -> dict[str, float]:
    """Returns scores by passage, 0 to 1."""
    values = [score for _, score in ranking]
    low = min(values, default=0.0)
    high = max(values, default=0.0)
    return {passage: (score - low) / (high - low) if high > low else 1.0 for passage, score in ranking}
