"""Per-question metrics of several conditions and seeds -> one table of means and of paired differences with
bootstrap intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DRAWS = 2000
METRICS = {"accuracy@20": "top-20", "mrr@10": "MRR@10", "ndcg@10": "nDCG@10"}


@dataclass(frozen=True)
class Measured:
    """One run: metric -> question id -> value, and the seconds its training took where it was not
    interrupted."""

    questions: Mapping[str, Mapping[str, float]]
    wall_s: float | None = None
    cpu_s: float | None = None

    @staticmethod
    def read(file: Path) -> Measured:
        return Measured(**json.loads(file.read_text(encoding="utf-8")))


def interval(differences: np.ndarray, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap of a mean: questions (Q,) are drawn Q at a time with replacement."""
    rng = np.random.default_rng(seed)
    size = len(differences)
    means = [differences[rng.integers(0, size, size)].mean() for _ in range(draws)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def per_question(runs: Sequence[Measured], metric: str) -> np.ndarray:
    """The mean over runs (seeds) for each question (Q,), in the order of question ids.

    Raises:
        ValueError: the runs did not answer the same questions.
    """
    asked = sorted(runs[0].questions[metric])
    if any(sorted(run.questions[metric]) != asked for run in runs):
        raise ValueError("runs of one condition answered different questions, expected the same ones")
    return np.mean([[run.questions[metric][question] for question in asked] for run in runs], axis=0)


def table(conditions: Mapping[str, Mapping[int, Measured]], metrics: Sequence[str], reference: str) -> str:
    """Markdown: one line per condition that was measured, from its runs by seed.

    Differences to ``reference`` are question by question, between means over the seeds that both have, or
    over all of each where they share none. Intervals are over questions, the seeds as they are. A
    ``reference`` that was not measured: no differences.
    """
    measured = {name: runs for name, runs in conditions.items() if runs}
    headings = [METRICS[name] for name in metrics]
    columns = [
        "",
        "seeds",
        *(part for heading in headings for part in (heading, f"difference in {heading}")),
        "wall s",
        "CPU s",
    ]
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    for name, runs in measured.items():
        cells = [name, str(len(runs))]
        for metric in metrics:
            difference = "" if name == reference else _difference(runs, measured.get(reference, {}), metric)
            cells += [_mean(list(runs.values()), metric), difference]
        lines.append("| " + " | ".join([*cells, *_seconds(list(runs.values()))]) + " |")
    return "\n".join(lines)


def _mean(runs: Sequence[Measured], metric: str) -> str:
    """The mean over seeds, and their range where there are several."""
    means = [float(per_question([run], metric).mean()) for run in runs]
    spread = f" ({min(means):.3f} to {max(means):.3f})" if len(means) > 1 else ""
    return f"{np.mean(means):.3f}{spread}"


def _difference(runs: Mapping[int, Measured], reference: Mapping[int, Measured], metric: str) -> str:
    if not reference:
        return ""
    ours, theirs = (
        [side[seed] for seed in sorted(runs.keys() & reference.keys()) or side] for side in (runs, reference)
    )
    differences = per_question(ours, metric) - per_question(theirs, metric)
    low, high = interval(differences)
    return f"{differences.mean():+.3f} ({low:+.3f} to {high:+.3f})"


def _seconds(runs: Sequence[Measured]) -> tuple[str, str]:
    """Medians over the runs that trained and were not interrupted."""
    timed = [(run.wall_s, run.cpu_s) for run in runs if run.wall_s is not None and run.cpu_s is not None]
    if not timed:
        return "", ""
    wall, cpu = np.median(np.array(timed), axis=0)
    return f"{wall:.0f}", f"{cpu:.0f}"
