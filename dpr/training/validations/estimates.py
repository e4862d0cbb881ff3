"""Estimates of retrieval metrics from a stratified sample of a corpus: a hard pool that is searched whole, and a draw from the rest.

The rank of a right passage is 1, and 1 for each passage of the pool above it, and N / n for each of the n passages drawn from the N others
that is above it. Metrics that depend on the very first ranks (top-1, MRR, nDCG) would be too high, so only accuracy and recall at 20
and 100 are estimated. The interval is about which passages were drawn, not about the choice of questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpr.core.seeding import generator_for
from dpr.embedding.source import PassageSource
from dpr.indexer.ranking import Ranking

ESTIMATED = ("accuracy@20", "accuracy@100", "recall@20", "recall@100")
_REDRAWN = 89  # keeps these random numbers apart from others
_REDRAWS = 300
_WITHIN = (0.025, 0.975)


@dataclass(frozen=True)
class Stratum:
    """The part of a corpus that is searched: ``sampled`` are the ids drawn, in order, of which each stands for ``weight`` passages."""

    source: PassageSource
    num_passages: int
    sampled: Sequence[str]
    weight: float


Judged = tuple[Ranking, Sequence[bool], int]
"""What was found for a question, whether each is right, and how many right ones there are."""


def estimated(judged: Mapping[str, Sequence[Judged]], stratum: Stratum, *, seed: int = 0) -> dict[str, float]:
    """``est_<prefix><metric>`` with ``..._low`` and ``..._high``, the ends of its 95 % interval, by prefix and judged questions."""
    number = {key: place for place, key in enumerate(stratum.sampled)}
    draws = max(len(number), 1)
    redrawn = generator_for(_REDRAWN, seed).multinomial(draws, [1 / draws] * draws, size=_REDRAWS).T
    columns = np.concatenate([np.ones((draws, 1), dtype=redrawn.dtype), redrawn], axis=1)  # as drawn, then drawn again and again
    metrics: dict[str, float] = {}
    for prefix, questions in judged.items():
        sums = dict.fromkeys(ESTIMATED, np.zeros(columns.shape[1]))
        for ranking, right, total in questions:
            ranks = _ranks_of_right(ranking, right, number, columns, stratum.weight)
            for name in ESTIMATED:
                kind, _, k = name.partition("@")
                reached = (ranks <= int(k)).sum(axis=0)
                sums[name] = sums[name] + (reached > 0 if kind == "accuracy" else reached / total)
        for name, values in sums.items():
            value, others = values[0] / len(questions), values[1:] / len(questions)
            low, high = np.quantile(others, _WITHIN)
            bounds = {"": value, "_low": min(low, value), "_high": max(high, value)}
            metrics |= {f"est_{prefix}{name}{end}": float(number) for end, number in bounds.items()}
    return metrics


def _ranks_of_right(ranking: Ranking, right: Sequence[bool], number: Mapping[str, int], columns: np.ndarray, weight: float) -> np.ndarray:
    """The estimated ranks (R, C) of the right passages of one question, for each column of how often each passage was drawn."""
    above_hard, above_drawn, ranks = 0, list[int](), list[np.ndarray]()
    for (key, _), is_right in zip(ranking, right, strict=True):
        if is_right:
            ranks.append(1 + above_hard + weight * columns[above_drawn].sum(axis=0))
        if key in number:
            above_drawn.append(number[key])
        else:
            above_hard += 1
    return np.array(ranks).reshape(len(ranks), columns.shape[1])
