"""Metrics of several systems on several test sets: each with its interval, and their means over the sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpr.evaluation.ranking_metrics import text_table
from dpr.evaluation.significance import LEVEL, mean_interval
from dpr.formats.metrics_files import MetricsFile

COLUMNS = {"ndcg@10": "nDCG@10", "recall@100": "recall@100", "mrr@10": "MRR@10"}
MEAN = "mean"


@dataclass(frozen=True)
class Measured:
    """A mean over the judged questions of a set, or over sets, with its interval."""

    mean: float
    low: float
    high: float
    variance: float = 0.0
    """Of the mean."""
    freedom: float = math.inf
    """Degrees of freedom of the variance."""

    def text(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


Figures = dict[str, dict[str, dict[str, Measured]]]
"""By set, system and metric."""


def measured(run: MetricsFile, metric: str) -> Measured | None:
    """The metric of a run; None where it was not measured."""
    if run.each is None or metric not in run.each.values or not (values := list(run.each.judged(metric).values())):
        return None
    array = np.asarray(values)
    variance = float(array.var(ddof=1)) / len(array) if len(array) > 1 else 0.0
    return Measured(run.metrics[metric], *mean_interval(array), variance, max(len(array) - 1, 1))


def mean_of_sets(parts: Sequence[Measured]) -> Measured:
    """The mean over sets, all weighing the same. The interval is about other questions, not about other sets (Welch, Satterthwaite)."""
    from scipy import stats

    mean, variance = math.fsum(part.mean for part in parts) / len(parts), sum(part.variance for part in parts) / len(parts) ** 2
    if not variance:
        return Measured(mean, mean, mean)
    freedom = sum(part.variance for part in parts) ** 2 / sum(part.variance**2 / part.freedom for part in parts)
    half = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * math.sqrt(variance)
    return Measured(mean, mean - half, mean + half, variance, freedom)


def figures_of(sets: Mapping[str, Mapping[str, MetricsFile]]) -> Figures:
    """The shown metrics of every set and system, and where there are several sets their means under the name ``mean``."""
    found: Figures = {
        name: {label: {metric: one for metric in COLUMNS if (one := measured(run, metric))} for label, run in runs.items()}
        for name, runs in sets.items()
    }
    if len(sets) < 2:
        return found
    means: dict[str, dict[str, Measured]] = {}
    for label in next(iter(found.values())):
        for metric in COLUMNS:
            parts = [systems[label][metric] for systems in found.values() if metric in systems.get(label, {})]
            if len(parts) == len(found):
                means.setdefault(label, {})[metric] = mean_of_sets(parts)
    return {**found, MEAN: means}


def rows_of(figures: Figures) -> list[list[str]]:
    """A table's lines of cells, headings first."""
    columns = [metric for metric in COLUMNS if any(metric in one for systems in figures.values() for one in systems.values())]
    lines = [["", *(COLUMNS[metric] for metric in columns)]]
    for name, systems in figures.items():
        for label, one in systems.items():
            lines.append([f"{name}, {label}", *(one[metric].text() if metric in one else "-" for metric in columns)])
    return lines


def suite_table(figures: Figures) -> str:
    """``rows_of`` as text."""
    return text_table(rows_of(figures))


def as_records(figures: Figures) -> dict[str, Any]:
    """For JSON: mean, low and high of every metric, by set and system."""
    return {
        name: {
            label: {metric: {"mean": part.mean, "low": part.low, "high": part.high} for metric, part in one.items()}
            for label, one in systems.items()
        }
        for name, systems in figures.items()
    }
