"""Several retrieval runs over the same questions: each tested against the first, and the questions that
changed most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.suggestions import suggestion
from dpr.evaluation.ranking_metrics import heading_of, tested_columns, text_table
from dpr.evaluation.report.examples import cut
from dpr.evaluation.significance import SHOWN, TOO_FEW, PairedTest, holm, paired_test
from dpr.formats.metrics_files import MetricsFile, PerQuestion

_NUM_CHANGED = 20
_TEXT_LIMIT = 90


@dataclass(frozen=True)
class Difference:
    """One metric of one run against the first run's. ``adjusted``: the p of the randomisation test, by Holm
    over the family."""

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
    """The metrics that all runs have for at least two questions: those ``wanted``, else those that tables
    show, else all.

    Raises:
        ConfigError: a metric that is wanted is not among them.
    """
    judged = [
        {name for name in run.each.values if len(run.each.judged(name)) > 1}
        for run in runs.values()
        if run.each
    ]
    common = [name for name in next(iter(runs.values())).metrics if all(name in names for names in judged)]
    for name in wanted:
        if name not in common:
            raise ConfigError(
                f"--metrics {name} is not in all of these files for two questions or"
                f" more{suggestion(name, common)}"
            )
    return list(wanted) or [name for name in tested_columns() if name in common] or common


def paired_values(
    first: PerQuestion, second: PerQuestion, metric: str, *, label: str, against: str
) -> tuple[list[float], list[float]]:
    """Values of the questions that a metric is taken over, in the order of the first run.

    Raises:
        InputError: the runs are about other questions.
    """
    ours, theirs = first.judged(metric), second.judged(metric)
    if other := sorted(ours.keys() ^ theirs.keys()):
        message = f"{metric} of question {other[0]!r} is in {against if other[0] in ours else label} alone"
        raise InputError(
            f"{label} and {against} are not about the same judged questions: {message}",
            expected="the same questions and judgements",
        )
    return list(ours.values()), [theirs[key] for key in ours]


def differences(sets: Mapping[str, Mapping[str, MetricsFile]], metrics: Sequence[str]) -> list[Difference]:
    """Every run of every set against the set's first, in every metric, and where there are several sets the
    means over them; all of these are one family."""
    values: dict[tuple[str, str, str, str], list[Any]] = {}
    mean = f"mean of {len(sets)} sets"
    for name, runs in sets.items():
        (against, first), *others = runs.items()
        for label, run in others:
            assert first.each is not None and run.each is not None
            for metric in metrics:
                values[name, label, against, metric] = [
                    paired_values(first.each, run.each, metric, label=label, against=against)
                ]
    if len(sets) > 1:
        for (_, label, against, metric), pairs in list(values.items()):
            values.setdefault((mean, label, against, metric), []).extend(pairs)
    tests = [paired_test(*pairs) for pairs in values.values()]
    adjusted = holm([test.p_flips for test in tests])
    return [Difference(*key, test, p) for key, test, p in zip(values, tests, adjusted, strict=True)]


def changed_most(first: PerQuestion, second: PerQuestion, metric: str) -> list[Changed]:
    """The questions with the largest differences, those that got worse and better alike; equal ones in the
    order of the first run."""
    ours, theirs = first.judged(metric), second.judged(metric)
    texts = dict(zip(first.ids, first.texts, strict=True))
    changed = [
        Changed(key, texts[key], value, theirs[key]) for key, value in ours.items() if theirs[key] != value
    ]
    return sorted(changed, key=lambda one: -abs(one.second - one.first))[:_NUM_CHANGED]


def difference_table(differences: Sequence[Difference]) -> str:
    """One line for each, with the set and the run where there are several."""
    several = len({one.question_set for one in differences}) > 1, len({one.run for one in differences}) > 1
    rows = [
        [
            "",
            "first",
            "second",
            "difference",
            "95 % interval",
            "t test",
            "randomisation",
            "Holm",
            "detectable",
        ]
    ]
    for one in differences:
        test, label = (
            one.test,
            [one.question_set] * several[0] + [one.run] * several[1] + [heading_of(one.metric)],
        )
        told = [
            f"[{test.low:+{SHOWN}}, {test.high:+{SHOWN}}]",
            _p(test.p_t),
            _p(test.p_flips),
            _p(one.adjusted),
            f"{test.detectable:{SHOWN}}",
        ]
        if test.outcome == TOO_FEW:
            told = [f"{TOO_FEW} to tell", "-", "-", "-", "-"]
        rows.append(
            [
                ", ".join(label),
                f"{test.first:{SHOWN}}",
                f"{test.second:{SHOWN}}",
                f"{test.difference:+{SHOWN}}",
                *told,
            ]
        )
    return text_table(rows)


def changed_table(changed: Sequence[Changed]) -> str:
    """Both values, the difference, and the question with its id, cut."""
    rows = [
        [f"{one.first:.3f}", f"{one.second:.3f}", f"{one.second - one.first:+.3f}", f"{one.id}: {one.text}"]
        for one in changed
    ]
    return "\n".join("  ".join([*row[:3], cut(row[3], _TEXT_LIMIT)]) for row in rows)


def as_record(one: Difference) -> dict[str, Any]:
    """For JSON."""
    return {
        "question_set": one.question_set,
        "run": one.run,
        "against": one.against,
        "metric": one.metric,
        "p_holm": one.adjusted,
        **asdict(one.test),
    }


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"
