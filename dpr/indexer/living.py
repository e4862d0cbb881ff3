"""Indexes whose passages come and go. An index that was built stays as it is: deleted passages are left out of
its results, and new ones are searched beside it. A search finds what an index of the present passages finds, with
the same scores, if the index that was built is exact or of words."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dpr.core.records import Passage
from dpr.formats.arrays import ArraySource
from dpr.indexer.bm25 import Bm25Index, lexical_tokens
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import RunningTopK, SearchResult, encode_ids, is_among
from dpr.indexer.registry import Index

_SPARE = 8  # an array that is full grows by this part of it, since growing copies it
_FEW = 32


class LivingVectors(Index):
    """Vectors beside those of ``base``, if there is one, in memory and searched exactly.

    Changes and searches must not run at the same time.
    """

    is_saved = False

    def __init__(self, base: Index | None, dimension: int, *, device: Any = "cpu") -> None:
        self.base = base
        self.device = device
        self.recall = base and base.recall
        self._gone: set[str] = set()  # passages of the base
        self._rows: dict[str, int] = {}
        self._ids = np.empty(0, dtype="S1")
        self._vectors = np.empty((0, dimension), dtype=np.float32)
        self._exact: ExactIndex | None = None

    @classmethod
    def build(cls, corpus: Any, settings: Any = None, *, device: Any = "cpu") -> Index:
        raise NotImplementedError("made from an index that was built")

    @property
    def num_passages(self) -> int:
        of_base = 0 if self.base is None else self.base.num_passages
        return of_base - len(self._gone) + len(self._rows)

    def change(self, gone: Iterable[Passage], added: Sequence[Passage], vectors: np.ndarray | None) -> None:
        """Removes passages that are there, then adds passages with their ``vectors`` (n, D) float32."""
        self._exact = None
        for passage in gone:
            key = str(passage.id)
            row = self._rows.pop(key, None)
            if row is None:
                self._gone.add(key)
            elif (last := len(self._rows)) != row:  # the last one takes its place
                self._ids[row] = self._ids[last]
                self._vectors[row] = self._vectors[last]
                self._rows[self._ids[row].decode()] = row
        if vectors is None or not added:
            return
        ids = encode_ids([str(passage.id) for passage in added])
        start = len(self._rows)
        end = start + len(ids)
        if end > len(self._ids):
            more = end - start + end // _SPARE
            self._ids = np.concatenate([self._ids[:start], np.zeros(more, dtype=ids.dtype)])
            spare = np.empty((more, self._vectors.shape[1]), dtype=np.float32)
            self._vectors = np.concatenate([self._vectors[:start], spare])
        elif ids.dtype.itemsize > self._ids.dtype.itemsize:
            self._ids = self._ids.astype(ids.dtype)
        self._ids[start:end] = ids
        self._vectors[start:end] = vectors
        self._rows |= {str(passage.id): start + number for number, passage in enumerate(added)}

    def search(self, queries: np.ndarray, k: int) -> SearchResult:
        best = RunningTopK(len(queries), max(1, min(k, self.num_passages)))
        if self._exact is None:
            count = len(self._rows)
            source = ArraySource(self._ids[:count], self._vectors[:count])
            self._exact = ExactIndex([source], device=self.device)
        _offer(best, self._exact.search(queries, k), frozenset())
        depth = k + min(len(self._gone), _FEW)
        while self.base is not None:
            found = self.base.search(queries, depth)
            kept = (sum(key not in self._gone for key in ids) for ids in found[1])
            if all(len(ids) < depth or count >= k for ids, count in zip(found[1], kept, strict=True)):
                _offer(best, found, self._gone)
                break
            depth *= 4  # too many of the best ones are gone
        return best.result()

    def over(self, base: Index) -> LivingVectors:
        """Returns a view with another index of the same passages as its base."""
        view = copy.copy(self)
        view.base = base
        return view

    def among(self, ids: np.ndarray) -> LivingVectors:
        view = copy.copy(self)
        count = len(self._rows)
        is_chosen = is_among(self._ids[:count], ids)
        source = ArraySource(self._ids[:count][is_chosen], self._vectors[:count][is_chosen])
        view._exact = ExactIndex([source], device=self.device)
        if self.base is not None:
            view.base = self.base.among(ids[~is_among(ids, encode_ids(sorted(self._gone)))])
        view._gone = set()
        return view


class LivingWords(Bm25Index):
    """Words of passages beside those of an index that was built. Scores are computed from the frequencies of the
    present passages, in the arithmetic of an index that is built of them, so they are the same bit for bit.

    Changes and searches must not run at the same time.
    """

    def __init__(self, base: Bm25Index) -> None:
        super().__init__(base._engine, base._ids)
        assert base.frequencies is not None
        self.frequencies = base.frequencies
        self._gone: set[str] = set()  # passages of the base
        self._rows: dict[str, int] = {}  # the others; rows of deleted ones are used again
        self._new_ids: list[str] = []
        self._new_lengths: list[int] = []
        self._free: list[int] = []
        self._held: dict[str, dict[int, int]] = {}  # word -> row -> how often
        self._more_holders: Counter[str] = Counter()
        self._num_words = int(base.frequencies[1].sum(dtype=np.int64))
        self._present: np.ndarray | None = None

    @property
    def num_passages(self) -> int:
        return len(self._ids) - len(self._gone) + len(self._rows)

    def change(self, gone: Iterable[Passage], added: Iterable[Passage], vectors: np.ndarray | None) -> None:
        """Removes passages that are there, whose texts are those that were indexed, then adds passages."""
        self._present = None
        for passage in gone:
            key = str(passage.id)
            counts = _counts(passage)
            self._num_words -= counts.total()
            self._more_holders.subtract(counts.keys())
            row = self._rows.pop(key, None)
            if row is None:
                self._gone.add(key)
                continue
            for word in counts:
                del self._held[word][row]
            self._free.append(row)
        for passage in added:
            key = str(passage.id)
            counts = _counts(passage)
            self._num_words += counts.total()
            self._more_holders.update(counts.keys())
            if not self._free:
                self._free.append(len(self._new_ids))
                self._new_ids.append("")
                self._new_lengths.append(0)
            row = self._free.pop()
            self._new_ids[row] = key
            self._new_lengths[row] = counts.total()
            self._rows[key] = row
            for word, count in counts.items():
                self._held.setdefault(word, {})[row] = count

    def among(self, ids: np.ndarray) -> LivingWords:
        view = copy.copy(self)
        view._is_chosen = self._rows_there() & self._is_of([str(key.decode()) for key in ids.tolist()])
        return view

    def _rows_there(self) -> np.ndarray:
        """Returns which rows, of the index that was built and then of the others, are passages."""
        if self._present is None:
            is_new = np.ones(len(self._new_ids), dtype=bool)
            is_new[self._free] = False
            is_old = ~self._is_of(self._gone)[: len(self._ids)]
            self._present = np.concatenate([is_old, is_new])
        return self._present

    def _is_of(self, ids: Iterable[str]) -> np.ndarray:
        """Returns which rows have one of these ids."""
        listed = sorted(ids)
        wanted = encode_ids(listed)
        is_new = np.zeros(len(self._new_ids), dtype=bool)
        is_new[[self._rows[key] for key in listed if key in self._rows]] = True
        return np.concatenate([*(is_among(some, wanted) for some in self._ids.chunks()), is_new])

    def _num_holders(self, word: str) -> int:
        return super()._num_holders(word) + self._more_holders[word]

    def _scores(self, question: str) -> np.ndarray:
        num_old = len(self._ids)
        there = self._rows_there()
        counts, lengths = self.frequencies
        new_lengths = np.array(self._new_lengths, dtype=np.int64)
        scores = np.zeros(len(there), dtype=np.float32)
        if not self._num_words:
            return scores
        mean = self._num_words / self.num_passages
        k1 = self._engine.k1
        b = self._engine.b
        for word in dict.fromkeys(lexical_tokens(question)):
            if not (holders := self._num_holders(word)):
                continue
            weight = np.float32(math.log(1 + (self.num_passages - holders + 0.5) / (holders + 0.5)))
            listed = self._holders(word)
            old = self._engine.scores["indices"][listed]
            new = self._held.get(word, {})
            new_rows = np.fromiter(new, dtype=np.int64, count=len(new))
            rows = np.concatenate([old, num_old + new_rows])
            often = np.concatenate([counts[listed], np.fromiter(new.values(), dtype=np.int64, count=len(new))])
            size = np.concatenate([lengths[old], new_lengths[new_rows]])
            # the order of these operations is that of the package, since another one rounds differently
            share = often / (k1 * ((1 - b) + b * size / mean) + often)
            scores[rows] += (weight * share).astype(np.float32)
        return np.where(there if self._is_chosen is None else self._is_chosen, scores, np.float32(0))

    def _ids_at(self, places: np.ndarray) -> np.ndarray:
        first = np.searchsorted(places, len(self._ids))
        new = [self._new_ids[place - len(self._ids)] for place in places[first:].tolist()]
        return np.concatenate([self._ids[places[:first]], encode_ids(new)])


def _counts(passage: Passage) -> Counter[str]:
    return Counter(lexical_tokens(f"{passage.title} {passage.text}", is_passage=True))


def _offer(best: RunningTopK, found: SearchResult, gone: set[str] | frozenset[str]) -> None:
    """Offers what a search found, without the passages that are gone."""
    scores, ids = found
    rows = [(row, column) for row, keys in enumerate(ids) for column, key in enumerate(keys) if key not in gone]
    if rows:
        at, columns = np.array(rows).T
        best.add(at, scores[at, columns], encode_ids([ids[row][column] for row, column in rows]))
