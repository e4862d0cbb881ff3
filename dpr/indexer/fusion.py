"""Two rankings of the same corpus made into one: a weighted sum of scores, or reciprocal ranks.

Scores of a dense model and of BM25 have different scales, which also differ from question to question, so a
weighted sum takes them normalised per question, over the passages each side listed: the best passage of a list
gets 1, its last 0. A passage that a side did not list gets 0 there: the side ranked it no higher than its last.
Lists in which all scores are equal get 1.

Reciprocal-rank fusion looks at ranks alone: the sum of 1 / (60 + rank), over the lists a passage is in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpr.indexer.ranking import Ranking

RRF_CONSTANT = (
    60  # of the paper (Cormack, Clarke, Buettcher 2009); large, so that the first ranks do not decide alone
)
_AT_ONCE = 256


class FusedLists:
    """Two rankings of each of Q questions side by side, normalised once, so that trying a weight takes
    milliseconds.

    Attributes:
        ids: the passages of each question, ascending; column c of its row in an array of shape (Q, longest
        list) is the c-th of them.
    """

    def __init__(self, first: Sequence[Ranking], second: Sequence[Ranking]) -> None:
        normalised = [[_normalised(ranking) for ranking in side] for side in (first, second)]
        self.ids = [sorted(ours.keys() | theirs.keys()) for ours, theirs in zip(*normalised, strict=True)]
        shape = 2, len(self.ids), max(map(len, self.ids), default=0)
        self._is_listed, self._sides = np.zeros(shape, dtype=bool), np.zeros(shape)
        for row, ids in enumerate(self.ids):
            for side, scores in enumerate((normalised[0][row], normalised[1][row])):
                self._is_listed[side, row, : len(ids)] = [passage in scores for passage in ids]
                self._sides[side, row, : len(ids)] = [scores.get(passage, 0.0) for passage in ids]

    def rankings(self, weight: float, k: int) -> list[Ranking]:
        """The ``k`` best of each question by ``weight`` times the first side plus ``1 - weight`` times the
        second. A side of weight 0 gives no passages: they would follow those of the other side in an order
        that means nothing."""
        scores = weight * self._sides[0] + (1.0 - weight) * self._sides[1]
        chosen = (self._is_listed[0] & (weight > 0)) | (self._is_listed[1] & (weight < 1))
        if scores.shape[1] > k:  # ties with the last one kept stay in until they are sorted
            scores[~chosen] = -np.inf
            chosen = chosen & (scores >= np.partition(scores, -k, axis=1)[:, -k, None])
        rows, columns = np.nonzero(chosen)
        values = scores[rows, columns]
        order = np.lexsort((-values, rows))  # stable, so equal scores stay in the order of ids
        ranks = np.arange(len(rows)) - np.searchsorted(rows, rows)
        kept = ranks < k
        rankings: list[Ranking] = [[] for _ in self.ids]
        hits = zip(
            rows[kept].tolist(), columns[order][kept].tolist(), values[order][kept].tolist(), strict=True
        )
        for row, column, score in hits:
            rankings[row].append((self.ids[row][column], score))
        return rankings


def fuse_linear(
    first: Sequence[Ranking],
    second: Sequence[Ranking],
    *,
    weight: float,
    k: int,
) -> list[Ranking]:
    """For each question the ``k`` best by ``weight`` times the first side's normalised score plus ``1 -
    weight`` times the second's."""
    fused: list[Ranking] = []
    for start in range(0, len(first), _AT_ONCE):
        lists = FusedLists(first[start : start + _AT_ONCE], second[start : start + _AT_ONCE])
        fused += lists.rankings(weight, k)
    return fused


def fuse_reciprocal_ranks(rankings: Sequence[Ranking], *, k: int) -> Ranking:
    """The ``k`` best by summed reciprocal ranks."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, (passage, _) in enumerate(ranking, 1):
            scores[passage] = scores.get(passage, 0.0) + 1.0 / (RRF_CONSTANT + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]


def _normalised(ranking: Ranking) -> dict[str, float]:
    """Scores by passage, 0 to 1."""
    values = [score for _, score in ranking]
    low, high = min(values, default=0.0), max(values, default=0.0)
    return {passage: (score - low) / (high - low) if high > low else 1.0 for passage, score in ranking}
