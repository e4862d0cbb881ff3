"""Comparison of several retrieval runs over the same questions: each run is tested against the first, and the
questions that changed most are listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.paths import user_path
from dpr.core.settings import listed, suggestion
from dpr.evaluation.page_text import cut
from dpr.evaluation.ranking_metrics import heading_of, headline_names, tested_columns, text_table
from dpr.evaluation.significance import (
    SHOWN,
    TOO_FEW,
    Estimate,
    PairedTest,
    estimate,
    holm,
    mean_of,
    paired_test,
)
from dpr.formats.metrics_files import MetricsFile, PerQuestion, read_metrics

_NUM_CHANGED = 20
_TEXT_LIMIT = 90
MEAN = "mean"
Figures = dict[str, dict[str, dict[str, Estimate]]]
"""Estimates by set, system and metric."""
_HEADINGS = "first,second,difference,95 % interval,t test,randomisation,Holm,detectable".split(",")


@dataclass(frozen=True)
class MetricDifference:
    """Difference of one metric between a run and the first run.

    ``adjusted`` is the p-value of the randomisation test, adjusted by Holm's method over the family.
    """

    question_set: str
    run: str
    against: str
    metric: str
    test: PairedTest
    adjusted: float


@dataclass(frozen=True)
class Changed:
    """A question with its values in both runs."""

    id: str
    text: str
    first: float
    second: float


def metrics_to_test(runs: Mapping[str, MetricsFile], wanted: Sequence[str]) -> list[str]:
    """Returns the metrics that all runs have for at least two questions: the ``wanted`` ones, else those
    shown in tables, else all.

    Raises:
        InputError: a run has no values of each question.
        ConfigError: a wanted metric is not among them.
    """
    common = list(next(iter(runs.values())).metrics)
    for label, run in runs.items():
        if run.each is None:
            raise InputError(
                f"{label} has no values of each question", hint="run dpr retrieve metrics_file=... again"
            )
        values = run.each.values
        common = [name for name in common if name in values and len(run.each.judged(name)) > 1]
    for name in wanted:
        if name not in common:
            raise ConfigError(
                f"metrics={name} is not in all of these runs for two questions or more{suggestion(name, common)}"
            )
    return list(wanted) or [name for name in tested_columns() if name in common] or common


def differences(
    sets: Mapping[str, Mapping[str, PerQuestion]], metrics: Sequence[str]
) -> list[MetricDifference]:
    """Compares every run of every set with the set's first run, in every metric. With several sets, the means
    over sets are compared too. All of these tests are one family.

    Raises:
        InputError: the runs of a set are about different questions.
    """
    family: dict[tuple[str, str, str, str], list[tuple[list[float], list[float]]]] = {}
    for name, runs in sets.items():
        against, *others = runs
        for label in others:
            for metric in metrics:
                ours = runs[against].judged(metric)
                theirs = runs[label].judged(metric)
                if other := sorted(ours.keys() ^ theirs.keys()):
                    alone = against if other[0] in ours else label
                    raise InputError(
                        f"{label} and {against} are not about the same judged questions: {metric} of question"
                        f" {other[0]!r} is only in {alone}",
                        expected="the same questions and judgements",
                    )
                pair = (list(ours.values()), [theirs[key] for key in ours])
                family[name, label, against, metric] = [pair]
    if len(sets) > 1:
        mean = f"mean of {len(sets)} sets"
        for (_, label, against, metric), of_set in list(family.items()):
            family.setdefault((mean, label, against, metric), []).extend(of_set)
    tests = [paired_test(*pairs) for pairs in family.values()]
    moved = [test for test in tests if test.difference or test.detectable]  # the others cannot find anything
    adjusted = dict(zip(moved, holm([test.p_flips for test in moved]), strict=True))
    return [
        MetricDifference(*key, test, adjusted.get(test, 1.0)) for key, test in zip(family, tests, strict=True)
    ]


class Comparison(dict[str, PairedTest]):
    """Paired tests by metric, which print as the table of ``dpr compare``."""

    differences: Sequence[MetricDifference]

    def __repr__(self) -> str:
        return difference_table(self.differences)


def compare(
    first: MetricsFile | str | Path, second: MetricsFile | str | Path, *, metrics: str | Sequence[str] = ()
) -> Comparison:
    """Tests the differences of two results of ``dpr.evaluate``, or metrics files, over the same questions.

    Args:
        metrics: names of the metrics to test; empty = those that ``dpr compare`` tests. Holm's correction
            covers all of them.

    Raises:
        InputError: they are about different questions.
        ConfigError: a metric is not in both, or an argument is neither a result nor a path.
    """
    runs = {}
    for label, run in (("first", first), ("second", second)):
        if not isinstance(run, MetricsFile | str | Path):
            raise ConfigError(
                f"{label} is of type {type(run).__name__}, expected what dpr.evaluate(...) returned, or a metrics file"
            )
        runs[label] = run if isinstance(run, MetricsFile) else read_metrics(user_path(run))
    names = metrics_to_test(runs, listed(metrics))
    compared = differences({"": {label: run.each for label, run in runs.items() if run.each}}, names)
    tests = Comparison({one.metric: one.test for one in compared})
    tests.differences = compared
    return tests


def changed_most(first: PerQuestion, second: PerQuestion, metric: str) -> list[Changed]:
    """Returns the questions with the largest differences, whether better or worse. Equal differences keep the
    order of the first run."""
    ours = first.judged(metric)
    theirs = second.judged(metric)
    texts = dict(zip(first.ids, first.texts, strict=True))
    changed = [
        Changed(key, texts[key], value, theirs[key]) for key, value in ours.items() if theirs[key] != value
    ]
    return sorted(changed, key=lambda one: -abs(one.second - one.first))[:_NUM_CHANGED]


def difference_table(differences: Sequence[MetricDifference]) -> str:
    """Returns a table with one line for each difference; the line names the set and the run if there are
    several."""
    has_sets = len({one.question_set for one in differences}) > 1
    has_runs = len({one.run for one in differences}) > 1
    rows = [["", *_HEADINGS]]
    for one in differences:
        test = one.test
        label = heading_of(one.metric)
        if has_runs:
            label = f"{one.run}, {label}"
        if has_sets:
            label = f"{one.question_set}, {label}"
        means = [f"{test.first:{SHOWN}}", f"{test.second:{SHOWN}}", f"{test.difference:+{SHOWN}}"]
        told = [f"{TOO_FEW} to tell", "-", "-", "-", "-"]
        if test.outcome != TOO_FEW:
            told = [f"[{max(test.low, -1.0):+{SHOWN}}, {min(test.high, 1.0):+{SHOWN}}]"]
            for p in (test.p_t, test.p_flips, one.adjusted):
                told.append("<0.001" if p < 0.001 else f"{p:.3f}")
            told.append(f"{test.detectable:{SHOWN}}")
        rows.append([label, *means, *told])
    return text_table(rows)


def changed_table(changed: Sequence[Changed]) -> str:
    """Returns one line for each question: both values, their difference, and its id and text, cut."""
    return "\n".join(
        f"{one.first:.3f}  {one.second:.3f}  {one.second - one.first:+.3f}  {cut(f'{one.id}: {one.text}', _TEXT_LIMIT)}"
        for one in changed
    )


def figures_of(sets: Mapping[str, Mapping[str, MetricsFile]]) -> Figures:
    """Returns the headline metrics of every set and system. With several sets, their means are added under
    the name ``mean``."""
    figures: Figures = {}
    for name, runs in sets.items():
        figures[name] = {}
        for label, run in runs.items():
            assert run.each is not None
            each = {metric: run.each.judged(metric) for metric in headline_names(run.metrics)}
            figures[name][label] = {
                metric: estimate(list(values.values())) for metric, values in each.items() if values
            }
    if len(sets) > 1:
        means: dict[str, dict[str, Estimate]] = {}
        for label, estimates in next(iter(figures.values())).items():
            for metric in estimates:
                parts = [systems[label][metric] for systems in figures.values() if metric in systems[label]]
                if len(parts) == len(sets):
                    means.setdefault(label, {})[metric] = mean_of(parts)
        figures[MEAN] = means
    return figures


def rows_of(figures: Figures) -> list[list[str]]:
    """Returns the lines of a table as cells, headings first."""
    names = [metric for systems in figures.values() for one in systems.values() for metric in one]
    columns = list(dict.fromkeys(names))
    lines = [["", *map(heading_of, columns)]]
    for name, systems in figures.items():
        for label, one in systems.items():
            cells = [
                f"{one[metric].mean:{SHOWN}} [{one[metric].ends[0]:{SHOWN}}, {one[metric].ends[1]:{SHOWN}}]"
                if metric in one
                else "-"
                for metric in columns
            ]
            lines.append([f"{name}, {label}", *cells])
    return lines


def as_records(figures: Figures) -> dict[str, Any]:
    """Returns mean, low and high of every metric, by set and system, as JSON."""
    return {
        name: {
            label: {
                metric: {"mean": part.mean, "low": part.ends[0], "high": part.ends[1]}
                for metric, part in one.items()
            }
            for label, one in systems.items()
        }
        for name, systems in figures.items()
    }
