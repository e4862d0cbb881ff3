"""Ranking metrics: names, defaults and tables all follow from one list, ``METRICS``.

Some of them are computed by trec_eval (pytrec-eval-terrier). It sorts hits by score again, after narrowing
scores to float32, and breaks ties by id, descending. So it gets strictly falling scores made from the ranks,
and judges the order of the list. A run read back from a file has the same metrics as the run in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpr.core.errors import ConfigError, InputError

Ranking = Sequence[tuple[str, float]]
"""Passage ids with scores, best first."""
Run = Mapping[str, Ranking]
"""Rankings by question id."""
Qrels = Mapping[str, Mapping[str, int]]
"""Question id -> passage id -> grade; above 0 is relevant."""

CUTOFFS = (1, 5, 10, 20, 100)
ByRank = Callable[[Sequence[int], int], float]
"""Function of the grades at the ranks, best first, and a cut-off; returns a question's value."""
BASELINES = {"bm25": "BM25", "hybrid": "hybrid", "guard": "guard"}
"""Labels of the baselines beside the model in metrics of step 0: ``eval/<set>/bm25/ndcg@10``."""
_FINEST = ("ndcg@10", "mrr@10", "accuracy@20")


@dataclass(frozen=True)
class Metric:
    """A metric from 0 to 1 of a question's ranking, such as ``name@10``. A new metric needs only an entry in
    ``METRICS``.

    Attributes:
        measure: the name in trec_eval, or a function.
        heading: the heading in tables, with ``{k}`` for the cut-off.
        cutoffs: cut-offs in metrics files; here and below, 0 stands for none.
        shown: cut-offs in the tables of ``dpr retrieve`` and ``dpr evaluate``, and on model cards.
        tested: cut-offs that ``dpr compare`` shows and tests.
        validated: cut-offs of a validation during training, and in reports.
        by_answers: True if it is also measured by answers in the texts; its measure then is a function.
    """

    name: str
    measure: str | ByRank
    heading: str
    cutoffs: tuple[int, ...] = CUTOFFS
    shown: tuple[int, ...] = (10,)
    tested: tuple[int, ...] = (10,)
    validated: tuple[int, ...] = (10,)
    by_answers: bool = False

    def named(self, cutoffs: Iterable[int]) -> list[str]:
        return [f"{self.name}@{k}" if k else self.name for k in cutoffs]


def _accuracy(grades: Sequence[int], k: int) -> float:
    """Returns 1 if a relevant passage is among the first k, else 0."""
    return float(any(grade > 0 for grade in grades[:k]))


def _reciprocal_rank(grades: Sequence[int], k: int) -> float:
    """Returns the reciprocal rank of the first relevant passage among the first k. trec_eval's own has no
    cut-off."""
    return next((1 / rank for rank, grade in enumerate(grades[:k], 1) if grade > 0), 0.0)


_TOP = (1, 5, 20, 100)
METRICS = [
    Metric("accuracy", _accuracy, "top-{k}", shown=_TOP, tested=_TOP, validated=_TOP, by_answers=True),
    Metric("mrr", _reciprocal_rank, "MRR@{k}"),
    Metric("ndcg", "ndcg_cut", "nDCG@{k}"),
    Metric("recall", "recall", "recall@{k}", shown=(100,), tested=(), validated=(20, 100)),
    Metric("map", "map", "map", cutoffs=(0,), shown=(), tested=(), validated=()),
]
_HEADLINES = ("ndcg@10", "recall@100", "mrr@10")
_ANSWER_HEADLINES = ("accuracy@20", "accuracy@100", "accuracy@1")


def metric_names(num_docs: int) -> list[str]:
    """Returns the names of all metrics of rankings of ``num_docs`` passages."""
    names = [name for metric in METRICS for name in metric.named(metric.cutoffs)]
    return [name for name in names if cutoff_of(name) <= num_docs]


def checked_names(wanted: Iterable[str]) -> list[str]:
    """Returns names of metrics, at any cut-offs, in small letters.

    Raises:
        ConfigError: there is no such metric.
    """
    has_cutoff = {metric.name: metric.cutoffs != (0,) for metric in METRICS}
    names = [name.lower() for name in wanted]
    unknown = []
    for name in names:
        kind, _, k = name.partition("@")
        if has_cutoff.get(kind) != k.lstrip("0").isdecimal():
            unknown.append(name)
    if unknown:
        known = ", ".join(metric_names(1))
        raise ConfigError(f"metrics: not measured: {', '.join(unknown)}; choose {known}, or other cut-offs")
    return names


def shown_names() -> list[str]:
    return [name for metric in METRICS for name in metric.named(metric.shown)]


def tested_columns() -> dict[str, str]:
    """Returns the metrics that ``dpr compare`` tests, with their headings."""
    return {name: heading_of(name) for metric in METRICS for name in metric.named(metric.tested)}


def validated_names() -> list[str]:
    return [name for metric in METRICS for name in metric.named(metric.validated)]


def headline_names(measured: Collection[str]) -> list[str]:
    """Returns the columns of a table of test sets. The first one is also compared with BM25's.

    If nDCG was measured at fewer than 10 passages only, the columns are those at the deepest cut-off. If
    rankings were judged by answers, they are accuracies.
    """
    if not any(name.startswith("ndcg@") for name in measured):
        return [name for name in _ANSWER_HEADLINES if name in measured] or list(measured)[-1:]
    if "ndcg@10" not in measured:
        deepest = max(cutoff_of(name) for name in measured if name.startswith("ndcg@"))
        return [f"{kind}@{deepest}" for kind in ("ndcg", "recall", "mrr")]
    defaults = [*_HEADLINES, *_ANSWER_HEADLINES]
    kinds = {name.partition("@")[0] for name in defaults}
    others = [name for name in shown_names() if name.partition("@")[0] not in kinds]
    return [name for name in (*_HEADLINES, *others) if name in measured]


def heading_of(name: str) -> str:
    """Returns a metric's heading in tables; for an unknown metric, its name."""
    kind, _, k = name.partition("@")
    return next((metric.heading.format(k=k) for metric in METRICS if metric.name == kind), name)


def cutoff_of(name: str) -> int:
    """Returns the cut-off of a metric, or 0 if it has none."""
    return int(name.partition("@")[2] or 0)


def is_by_answers(name: str) -> bool:
    """Returns whether a metric is also measured by answers in the texts."""
    return any(metric.by_answers for metric in METRICS if metric.name == name.partition("@")[0])


def values_of(run: Run, grades: Qrels, names: Iterable[str]) -> dict[str, dict[str, float]]:
    """Returns the metrics ``names`` of each question of ``grades``, in its order. A question that is not in
    ``run`` has an empty ranking.

    Raises:
        InputError: a passage is listed twice for a question.
    """
    import pytrec_eval

    by_kind = {metric.name: metric.measure for metric in METRICS}
    measures = {name: by_kind[name.partition("@")[0]] for name in names}
    of_trec_eval = {
        f"{measure}.{cutoff_of(name)}" if cutoff_of(name) else measure
        for name, measure in measures.items()
        if isinstance(measure, str)
    }
    measured = {}
    if of_trec_eval:
        scores = {}
        for question in grades:
            ranking = run.get(question, ())
            falling = {passage: float(len(ranking) - rank) for rank, (passage, _) in enumerate(ranking)}
            if len(falling) != len(ranking):
                raise InputError(f"a passage is listed more than once for question {question!r}")
            scores[question] = falling
        judged = {question: dict(of_question) for question, of_question in grades.items()}
        measured = pytrec_eval.RelevanceEvaluator(judged, of_trec_eval).evaluate(scores)
    values: dict[str, dict[str, float]] = {}
    for question, of_question in grades.items():
        by_rank = [of_question.get(passage, 0) for passage, _ in run.get(question, ())]
        values[question] = {}
        for name, measure in measures.items():
            k = cutoff_of(name)
            if callable(measure):
                values[question][name] = measure(by_rank, k)
            else:
                values[question][name] = measured[question][f"{measure}_{k}" if k else measure]
    return values


def evaluate_questions(
    run: Run | Mapping[str, Mapping[str, float]], qrels: Qrels, cutoffs: Iterable[int] = CUTOFFS
) -> dict[str, dict[str, float]]:
    """Returns all metrics of each question with a relevant passage, in the order of ``qrels``. ``run`` has a
    list of passages and scores for each question, best first, or a dictionary of scores. A question that is not in
    ``run`` counts as 0."""
    at = sorted(set(cutoffs))
    names = [name for metric in METRICS for name in metric.named((0,) if metric.cutoffs == (0,) else at)]
    rankings: dict[str, Ranking] = {}
    for question, scored in run.items():
        if isinstance(scored, Mapping):
            scored = sorted(scored.items(), key=lambda item: -item[1])
        rankings[question] = scored
    return values_of(rankings, with_relevant(qrels), names)


def mean_metrics(per_question: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each metric over questions, as returned by ``evaluate_questions``.

    Raises:
        InputError: there is no question.
    """
    if not per_question:
        raise InputError(
            "no question has a passage judged relevant",
            hint="check that question ids and judgements belong together",
        )
    names = next(iter(per_question.values()))
    return {name: sum(values[name] for values in per_question.values()) / len(per_question) for name in names}


def with_relevant(qrels: Qrels) -> dict[str, Mapping[str, int]]:
    """Returns the questions that have a relevant passage."""
    return {key: grades for key, grades in qrels.items() if any(grade > 0 for grade in grades.values())}


def format_table(rows: Mapping[str, Mapping[str, float]], columns: Mapping[str, str]) -> str:
    """Returns a table with one line per row, one column per metric and three decimals.

    A metric that a row lacks is shown as ``-``; one that all rows lack is left out. ``columns`` maps the
    metrics to their headings.
    """
    headings = {
        name: heading
        for name, heading in columns.items()
        if any(name in metrics for metrics in rows.values())
    }
    cells = [
        [label, *(f"{metrics[name]:.3f}" if name in metrics else "-" for name in headings)]
        for label, metrics in rows.items()
    ]
    return text_table([["", *headings.values()], *cells])


def text_table(cells: Sequence[Sequence[str]]) -> str:
    """Returns lines of cells, the first of them headings, as columns. The first column is aligned to the
    left, the others to the right."""
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]
        )
        for line in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def is_baseline(name: str) -> bool:
    """True if a metric of a validation is that of a baseline beside the model."""
    parts = name.split("/")
    return len(parts) > 3 and parts[-2] in BASELINES


def finest(names: Sequence[str]) -> list[str]:
    """Returns, for each set that was searched, the metric that is most sensitive to small differences."""
    heads = dict.fromkeys(name.rpartition("/")[0] for name in names if "@" in name)
    names_of_heads = (
        next((f"{head}/{kind}" for kind in _FINEST if f"{head}/{kind}" in names), None) for head in heads
    )
    return [name for name in names_of_heads if name]
