"""Two rankings of the same corpus made into one: a weighted sum of scores, or reciprocal ranks.

Scores of a dense model and of BM25 have different scales, which also differ from question to question, so a weighted sum needs them
normalised per question, over the passages each side listed:

* ``minmax`` (default): the best passage of a list gets 1, its last 0. A passage that a side did not list gets 0 there: the side ranked it
  no higher than its last. Lists in which all scores are equal get 1.
* ``zscore``: mean 0, standard deviation 1; a passage that a side did not list gets what the side's last one has. Equal scores get 0.

Reciprocal-rank fusion looks at ranks alone: the sum of 1 / (60 + rank), over the lists a passage is in.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from dpr.indexer.ranking import Ranking

NORMALISATIONS = ("minmax", "zscore")
RRF_CONSTANT = 60  # of the paper (Cormack, Clarke, Buettcher 2009); large, so that the first ranks do not decide alone


def fuse_linear(first: Ranking, second: Ranking, *, weight: float, k: int, normalisation: str = "minmax") -> Ranking:
    """The ``k`` best by ``weight`` times the first side's normalised score plus ``1 - weight`` times the second's."""
    normalise = _NORMALISE[normalisation]
    (ours, our_rest), (theirs, their_rest) = normalise(first), normalise(second)
    scores = {
        passage: weight * ours.get(passage, our_rest) + (1.0 - weight) * theirs.get(passage, their_rest)
        for passage in ours.keys() | theirs.keys()
    }
    return _best(scores, k)


def fuse_reciprocal_ranks(rankings: Sequence[Ranking], *, k: int) -> Ranking:
    """The ``k`` best by summed reciprocal ranks."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, (passage, _) in enumerate(ranking, 1):
            scores[passage] = scores.get(passage, 0.0) + 1.0 / (RRF_CONSTANT + rank)
    return _best(scores, k)


def _best(scores: dict[str, float], k: int) -> Ranking:
    if len(scores) > k > 0:
        # Sorting thousands to keep a hundred is most of the work otherwise; ties with the last one kept stay in.
        least = heapq.nlargest(k, scores.values())[-1]
        scores = {passage: score for passage, score in scores.items() if score >= least}
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]


def _minmax(ranking: Ranking) -> tuple[dict[str, float], float]:
    if not ranking:
        return {}, 0.0
    high, low = max(score for _, score in ranking), min(score for _, score in ranking)
    if high == low:
        return {passage: 1.0 for passage, _ in ranking}, 0.0
    return {passage: (score - low) / (high - low) for passage, score in ranking}, 0.0


def _zscore(ranking: Ranking) -> tuple[dict[str, float], float]:
    if not ranking:
        return {}, 0.0
    mean = math.fsum(score for _, score in ranking) / len(ranking)
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for _, score in ranking) / len(ranking))
    scores = {passage: (score - mean) / deviation if deviation else 0.0 for passage, score in ranking}
    return scores, min(scores.values())


_NORMALISE: dict[str, Callable[[Ranking], tuple[dict[str, float], float]]] = {"minmax": _minmax, "zscore": _zscore}
