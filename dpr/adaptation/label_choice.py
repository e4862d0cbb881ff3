"""The rule by which ``dpr adapt train=`` chooses a model and its weight in the hybrid, on the dev questions.

A choice counts as better than another only by more than ``MARGIN`` standard errors of the difference, question by
question. How often this goes wrong is measured (benchmarks/results/labels.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpr.adaptation.choices import METRIC, WEIGHT_OF_GIVEN
from dpr.evaluation.significance import estimate
from dpr.formats.metrics_files import MetricsFile

MARGIN = 1.0
"""Standard errors by which a choice must be better than another."""
WEIGHTS = tuple(step / 10 for step in range(11))
"""Weights of a model in the hybrid: 0 is BM25 alone, 1 the model alone."""
BASE = "base model"
AVERAGE = "average"
TUNED = "fine-tuned model"
Measured = dict[tuple[str, float], MetricsFile]
"""Metrics of a system by its name and weight in the hybrid."""


def chosen_model(measured: Measured) -> str:
    """Returns the average or the fine-tuned model if it is better than the base model, and the latter also
    better than the average; else the base model. A question counts by the mean of the model alone and its
    hybrid, since people search with either."""
    both = {
        name: [
            (alone + hybrid) / 2
            for alone, hybrid in zip(
                values_of(measured[name, 1.0]), values_of(measured[name, WEIGHT_OF_GIVEN]), strict=True
            )
        ]
        for name in (BASE, AVERAGE, TUNED)
    }
    chosen = BASE
    for name in (AVERAGE, TUNED):
        if is_better(both[name], both[chosen]):
            chosen = name
    return chosen


def chosen_weight(measured: Measured, name: str) -> float:
    """Returns the weight nearest to the default that is not worse than the best one."""

    def metric(weight: float) -> float:
        return measured[name, weight].metrics[METRIC]

    best = values_of(measured[name, max(WEIGHTS, key=metric)])
    nearest = sorted(WEIGHTS, key=lambda weight: (round(abs(weight - WEIGHT_OF_GIVEN), 1), -metric(weight)))
    return next(weight for weight in nearest if not is_better(best, values_of(measured[name, weight])))


def is_better(values: Sequence[float], than: Sequence[float]) -> bool:
    """True if the mean difference of the questions exceeds ``MARGIN`` of its standard errors."""
    difference = estimate([ours - theirs for ours, theirs in zip(values, than, strict=True)])
    return difference.mean > MARGIN * math.sqrt(difference.variance)


def values_of(run: MetricsFile) -> list[float]:
    """Returns the metric of each question."""
    assert run.each is not None
    return list(run.each.judged(METRIC).values())
