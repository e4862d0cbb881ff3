"""Vectors of passages that come and go. An index that was built stays as it is: deleted passages are left out of
its results, and new ones are searched beside it, exactly. Over exact search, the result is that of an index of the
present passages, bit for bit."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from dpr.formats.arrays import ArraySource
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import RunningTopK, SearchResult, encode_ids, is_among
from dpr.indexer.registry import Index

_FEW = 32


class LivingVectors(ExactIndex):
    """Exact search of new vectors in memory, beside those of ``base``; without one, the first passages that are
    added become it. Changes and searches must not run at the same time."""

    def __init__(self, base: Index | None, dimension: int, *, device: Any = "cpu") -> None:
        self.base = base
        self.recall = None if base is None else base.recall
        self._gone: set[str] = set()  # passages of the base
        self._new: dict[str, np.ndarray] = {}
        super().__init__([ArraySource(np.empty(0, dtype="S1"), np.empty((0, dimension)))], device=device)

    @property
    def num_passages(self) -> int:
        of_base = 0 if self.base is None else self.base.num_passages
        return of_base - len(self._gone) + len(self._new)

    def change(self, gone: Iterable[str], added: Collection[str], vectors: np.ndarray | None) -> None:
        """Removes passages that are there, by their ids, then adds passages with their ``vectors`` (n, D) float32."""
        for key in gone:
            if self._new.pop(key, None) is None:
                self._gone.add(key)
        if vectors is not None:
            if self.base is None:
                self.base = ExactIndex([ArraySource(encode_ids(list(added)), vectors)], device=self.device)
            else:
                self._new |= zip(added, vectors, strict=True)
        self.sources = []

    def search(self, queries: np.ndarray, k: int) -> SearchResult:
        best = RunningTopK(len(queries), max(1, min(k, self.num_passages)))
        if not self.sources:  # joined at the first search after a change
            vectors = np.array(list(self._new.values()), dtype=np.float32).reshape(-1, self.dimension)
            self.sources = [ArraySource(encode_ids(list(self._new)), vectors)]
            self._longest = {}
        _offer(best, super().search(queries, k), ())
        depth = k + min(len(self._gone), _FEW)
        while self.base is not None:
            found = self.base.search(queries, depth)
            if all(len(ids) < depth or sum(key not in self._gone for key in ids) >= k for ids in found[1]):
                _offer(best, found, self._gone)
                break
            depth *= 4  # too many of the best ones are gone
        return best.result()

    def among(self, ids: np.ndarray) -> ExactIndex:
        view: Any = super().among(ids)
        if self.base is not None:
            view.base = self.base.among(ids[~is_among(ids, encode_ids(sorted(self._gone)))])
        return view


def _offer(best: RunningTopK, found: SearchResult, gone: Collection[str]) -> None:
    """Offers what a search found, without the passages that are gone."""
    scores, ids = found
    kept = [(row, place) for row, keys in enumerate(ids) for place, key in enumerate(keys) if key not in gone]
    if kept:
        rows, places = np.array(kept).T
        best.add(rows, scores[rows, places], encode_ids([ids[row][place] for row, place in kept]))
