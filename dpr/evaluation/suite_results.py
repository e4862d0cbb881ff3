"""Metrics of several systems on several test sets: each with its interval, and their means over the sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpr.evaluation.ranking_metrics import text_table
from dpr.evaluation.significance import Estimate, estimate, mean_of
from dpr.formats.metrics_files import MetricsFile

COLUMNS = {"ndcg@10": "nDCG@10", "recall@100": "recall@100", "mrr@10": "MRR@10"}
MEAN = "mean"


Figures = dict[str, dict[str, dict[str, Estimate]]]
"""By set, system and metric."""


def shown_metrics(run: MetricsFile) -> list[str]:
    """Those of ``COLUMNS``; of a run of fewer than ten passages the same kinds at its deepest cut-off."""
    if "ndcg@10" in run.metrics:
        return [metric for metric in COLUMNS if metric in run.metrics]
    deepest = max(int(name.partition("@")[2]) for name in run.metrics if name.startswith("ndcg@"))
    return [f"{kind}@{deepest}" for kind in ("ndcg", "recall", "mrr")]


def measured(run: MetricsFile, metric: str) -> Estimate | None:
    """The metric of a run over the judged questions; None where it was not measured."""
    values = {} if run.each is None or metric not in run.each.values else run.each.judged(metric)
    return estimate(list(values.values())) if values else None


def figures_of(sets: Mapping[str, Mapping[str, MetricsFile]]) -> Figures:
    """The shown metrics of every set and system, and where there are several sets their means under the name ``mean``."""
    figures: Figures = {
        name: {label: {metric: one for metric in shown_metrics(run) if (one := measured(run, metric))} for label, run in runs.items()}
        for name, runs in sets.items()
    }
    if len(sets) < 2:
        return figures
    means: dict[str, dict[str, Estimate]] = {}
    for label, first in next(iter(figures.values())).items():
        for metric in first:
            means.setdefault(label, {})[metric] = mean_of([systems[label][metric] for systems in figures.values()])
    return {**figures, MEAN: means}


def rows_of(figures: Figures) -> list[list[str]]:
    """A table's lines of cells, headings first."""
    columns = list(dict.fromkeys(metric for systems in figures.values() for one in systems.values() for metric in one))
    lines = [["", *(COLUMNS.get(metric, metric) for metric in columns)]]
    for name, systems in figures.items():
        for label, one in systems.items():
            lines.append([f"{name}, {label}", *(_text(one[metric]) if metric in one else "-" for metric in columns)])
    return lines


def suite_table(figures: Figures) -> str:
    """``rows_of`` as text."""
    return text_table(rows_of(figures))


def _text(one: Estimate) -> str:
    return f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]"


def as_records(figures: Figures) -> dict[str, Any]:
    """For JSON: mean, low and high of every metric, by set and system."""
    return {
        name: {
            label: {metric: {"mean": part.mean, "low": part.low, "high": part.high} for metric, part in one.items()}
            for label, one in systems.items()
        }
        for name, systems in figures.items()
    }
