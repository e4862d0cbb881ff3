"""Estimates of retrieval metrics from a stratified sample of a corpus: a hard pool that is searched whole, and a draw from the rest.

How many passages of the pool are above a right passage is known; how many of the rest, is estimated from those drawn
(``dpr/evaluation/drawn_ranks.py``). Metrics that depend on the very first ranks (top-1, MRR, nDCG) would be rough, so only accuracy and
recall at 20 and 100 are estimated. The interval is about which passages were drawn, not about the choice of questions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpr.embedding.source import PassageSource
from dpr.evaluation.drawn_ranks import probabilities_within
from dpr.indexer.ranking import Ranking

ESTIMATED = ("accuracy@20", "accuracy@100", "recall@20", "recall@100")
_DEVIATIONS = 3  # two would do if questions followed the fitted distribution exactly; measured in docs/training.md


@dataclass(frozen=True)
class Stratum:
    """The part of a corpus that is searched: ``sampled`` are the ids drawn, of which each stands for ``weight`` passages."""

    source: PassageSource
    num_passages: int
    sampled: Collection[str]
    weight: float


Judged = tuple[Ranking, Sequence[bool], int]
"""What was found for a question, whether each is right, and how many right ones there are."""


def estimated(judged: Mapping[str, Sequence[Judged]], stratum: Stratum) -> dict[str, float]:
    """``est_<prefix><metric>`` with ``..._low`` and ``..._high``, the ends of its interval, by prefix and judged questions."""
    drawn, share = frozenset(stratum.sampled), min(1.0, 1 / max(stratum.weight, 1.0))
    metrics: dict[str, float] = {}
    for prefix, questions in judged.items():
        above = [_above_right(ranking, right, drawn) for ranking, right, _ in questions]
        question = np.repeat(np.arange(len(above)), [len(counts) for counts in above])
        hard, seen = np.array([pair for counts in above for pair in counts], dtype=np.int64).reshape(-1, 2).T
        is_best = np.diff(question, prepend=-1) > 0
        total = np.array([total for _, _, total in questions])
        reached = {k: probabilities_within(k, hard, seen, share) for k in (20, 100)}
        for name in ESTIMATED:
            kind, _, k = name.partition("@")
            within = reached[int(k)]
            weights = is_best if kind == "accuracy" else 1 / total[question]
            # Passages of one question are reached or missed together, those of several independently.
            deviations = np.bincount(question, np.sqrt(within * (1 - within)) * weights, len(questions))
            value, margin = (within * weights).sum() / len(questions), _DEVIATIONS * np.linalg.norm(deviations) / len(questions)
            bounds = {"": value, "_low": max(value - margin, 0.0), "_high": min(value + margin, 1.0)}
            metrics |= {f"est_{prefix}{name}{end}": float(number) for end, number in bounds.items()}
    return metrics


def _above_right(ranking: Ranking, right: Sequence[bool], drawn: Collection[str]) -> list[tuple[int, int]]:
    """For each right passage of a ranking how many of the hard pool and how many of those drawn are above it."""
    counts, above = list[tuple[int, int]](), [0, 0]
    for (key, _), is_right in zip(ranking, right, strict=True):
        if is_right:
            counts.append((above[0], above[1]))
        above[key in drawn] += 1
    return counts
