"""Words of passages that come and go, beside an index of words that was built."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpr.core.records import Passage
from dpr.formats.packed_ids import PackedIds
from dpr.indexer.bm25 import Bm25Index, lexical_tokens
from dpr.indexer.ranking import encode_ids, is_among


class LivingWords(Bm25Index):
    """A BM25 index whose passages change. Scores are computed from the frequencies of the present passages, in the
    arithmetic of an index that is built of them, so they are the same bit for bit.

    Changes and searches must not run at the same time.
    """

    def __init__(self, built: Bm25Index) -> None:
        super().__init__(built._engine, built._ids)
        assert built.frequencies is not None
        self._built_ids = built._ids
        self._counts, self._lengths = built.frequencies
        self._num_words = int(self._lengths.sum(dtype=np.int64))
        self._more_holders: Counter[str] = Counter()
        self._gone: set[str] = set()  # passages of the index that was built
        self._new: dict[str, Counter[str]] = {}  # words of the others
        self._new_lengths = np.empty(0, dtype=np.int64)
        self._is_folded = True

    @property
    def num_passages(self) -> int:
        return len(self._built_ids) - len(self._gone) + len(self._new)

    def change(self, gone: Mapping[str, Passage], added: Mapping[str, Passage], vectors: Any = None) -> None:
        """Removes passages that are there, whose texts are those that were indexed, then adds passages."""
        for key, passage in gone.items():
            self._count(passage, -1)
            if self._new.pop(key, None) is None:
                self._gone.add(key)
        for key, passage in added.items():
            self._new[key] = self._count(passage, 1)
        self._is_folded = False

    def _count(self, passage: Passage, sign: int) -> Counter[str]:
        """Returns the words of a passage, which add to those of all passages or go."""
        counts = Counter(lexical_tokens(f"{passage.title} {passage.text}", is_passage=True))
        self._num_words += sign * counts.total()
        self._more_holders.update(dict.fromkeys(counts, sign))
        return counts

    def _fold(self) -> None:
        """Lists the ids and lengths of all rows after changes; the ids of deleted passages are empty."""
        if not self._is_folded:
            built = np.concatenate(list(self._built_ids.chunks()))
            built[is_among(built, encode_ids(sorted(self._gone)))] = b""
            self._ids = PackedIds(np.concatenate([built, encode_ids(list(self._new))]))
            self._new_lengths = np.array([counts.total() for counts in self._new.values()], dtype=np.int64)
            self._is_folded = True

    def among(self, ids: np.ndarray) -> Bm25Index:
        self._fold()
        return super().among(ids)

    def _num_holders(self, word: str) -> int:
        return super()._num_holders(word) + self._more_holders[word]

    def _scores(self, question: str) -> np.ndarray:
        self._fold()
        scores = np.zeros(len(self._ids), dtype=np.float32)
        k1 = self._engine.k1
        b = self._engine.b
        for word in dict.fromkeys(lexical_tokens(question)):
            if not (holders := self._num_holders(word)):
                continue
            weight = np.float32(math.log(1 + (self.num_passages - holders + 0.5) / (holders + 0.5)))
            listed = self._holders(word)
            rows = self._engine.scores["indices"][listed]
            new = np.array([counts[word] for counts in self._new.values()], dtype=np.int64)
            mean = self._num_words / self.num_passages
            for places, often, size in (
                (rows, self._counts[listed], self._lengths[rows]),
                (slice(len(self._lengths), None), new, self._new_lengths),
            ):
                # the order of these operations is that of the package, since another one rounds differently
                share = often / (k1 * ((1 - b) + b * size / mean) + often)
                scores[places] += (weight * share).astype(np.float32)
        is_there = self._ids[:] != b""
        return np.where(
            is_there if self._is_chosen is None else is_there & self._is_chosen, scores, np.float32(0)
        )
