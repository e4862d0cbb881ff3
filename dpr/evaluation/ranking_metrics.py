"""Ranking metrics by trec_eval (pytrec-eval-terrier): recall@k, mrr@k, ndcg@k, accuracy@k (a relevant passage
among the first k) and map.

trec_eval ranks by score again: it narrows scores to float32 and breaks ties by id, descending. So it is
handed strictly falling scores made from the rank, and what it judges is the order of the list. A run read
back from a file has the same metrics as the run in memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpr.core.errors import InputError

Run = Mapping[str, Sequence[tuple[str, float]]]
"""Question id -> passage ids with scores, best first."""

Qrels = Mapping[str, Mapping[str, int]]
"""Question id -> passage id -> grade; above 0 is relevant."""

CUTOFFS = (1, 5, 10, 20, 100)
RETRIEVAL_COLUMNS = {
    "accuracy@1": "top-1",
    "accuracy@5": "top-5",
    "accuracy@20": "top-20",
    "accuracy@100": "top-100",
    "mrr@10": "MRR@10",
    "ndcg@10": "nDCG@10",
}
"""What is shown of a retrieval, in this order, with the headings."""


def evaluate_run(run: Run, qrels: Qrels, cutoffs: Iterable[int] = CUTOFFS) -> dict[str, float]:
    """Mean of each metric over all questions with a relevant passage in ``qrels``; one that is not in ``run``
    counts as 0.

    Raises:
        InputError: no question has a relevant passage, or a passage is listed twice for a question.
    """
    return mean_metrics(evaluate_questions(run, qrels, cutoffs))


def mean_metrics(per_question: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over questions, as ``evaluate_questions`` gives them.

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


def evaluate_questions(
    run: Run, qrels: Qrels, cutoffs: Iterable[int] = CUTOFFS
) -> dict[str, dict[str, float]]:
    """The metrics of each question with a relevant passage, in the order of ``qrels``."""
    import pytrec_eval

    judged = {
        question: dict(grades)
        for question, grades in qrels.items()
        if any(grade > 0 for grade in grades.values())
    }
    cutoffs = sorted(set(cutoffs))
    depths = ",".join(map(str, cutoffs))
    scores = {question: _falling_scores(question, run.get(question, ())) for question in judged}
    evaluator = pytrec_eval.RelevanceEvaluator(
        judged, {f"recall.{depths}", f"ndcg_cut.{depths}", f"success.{depths}", "map", "recip_rank"}
    )
    measured = evaluator.evaluate(scores)
    result = {}
    for question in judged:
        measures = measured[question]
        # trec_eval cannot cut the reciprocal rank off; with the first relevant rank r it is 1/r, or 0 beyond
        # the cut-off.
        reciprocal = measures["recip_rank"]
        values = {}
        for k in cutoffs:
            values[f"accuracy@{k}"] = measures[f"success_{k}"]
            values[f"recall@{k}"] = measures[f"recall_{k}"]
            values[f"mrr@{k}"] = reciprocal if reciprocal * (k + 0.5) > 1 else 0.0
            values[f"ndcg@{k}"] = measures[f"ndcg_cut_{k}"]
        result[question] = values | {"map": measures["map"]}
    return result


def metric_names(cutoffs: Iterable[int]) -> list[str]:
    """Names of the metrics of ``evaluate_run``."""
    return [f"{kind}@{k}" for k in sorted(set(cutoffs)) for kind in ("accuracy", "recall", "mrr", "ndcg")] + [
        "map"
    ]


def metric_by_rank(name: str, grades: np.ndarray, relevant: Sequence[Sequence[int]]) -> list[float]:
    """One of the metrics of each question, bit by bit as ``evaluate_questions`` has it, from the grades that
    stand at its ranks.

    Args:
        name: such as ``mrr@10`` or ``map``.
        grades: (Q, K), best first; 0 where nothing is judged or listed.
        relevant: for each question the grades above 0 of all passages, in the corpus or not.
    """
    kind, _, cutoff = name.partition("@")
    cut = grades[:, : int(cutoff)] if cutoff else grades
    hits = cut > 0
    ranks = np.arange(1, cut.shape[1] + 1)
    if kind == "accuracy":
        return hits.any(axis=1).astype(float).tolist()
    if kind == "mrr":
        return (hits / ranks).max(axis=1, initial=0.0).tolist()
    totals = np.array([len(listed) for listed in relevant])
    if kind == "recall":
        return (hits.sum(axis=1) / totals).tolist()
    if kind == "map":  # cumsum adds one after the other, as trec_eval does; sum would not
        return ((hits * np.cumsum(hits, axis=1) / ranks).cumsum(axis=1)[:, -1] / totals).tolist()
    discounts = np.array([math.log2(rank + 1) for rank in ranks.tolist()])
    ideal = np.zeros(cut.shape)
    for line, listed in zip(ideal, relevant, strict=True):
        best = sorted(listed, reverse=True)[: len(line)]
        line[: len(best)] = best
    gained, possible = ((values / discounts).cumsum(axis=1)[:, -1] for values in (np.maximum(cut, 0), ideal))
    return (gained / possible).tolist()


@dataclass(frozen=True)
class Coverage:
    """How run, judgements and corpus fit together; ``str`` is the one line to report."""

    num_evaluated: int
    num_without_judgements: int
    num_without_relevant: int
    num_not_in_run: int
    num_judged_passages_not_in_corpus: int | None

    def __str__(self) -> str:
        parts = [f"{self.num_evaluated} questions evaluated"]
        if self.num_without_judgements:
            parts.append(f"{self.num_without_judgements} without judgements left out")
        if self.num_without_relevant:
            parts.append(f"{self.num_without_relevant} without a relevant passage left out")
        if self.num_not_in_run:
            parts.append(f"{self.num_not_in_run} judged but without any hit (count as 0)")
        if self.num_judged_passages_not_in_corpus:
            parts.append(
                f"{self.num_judged_passages_not_in_corpus} relevant passages are not in the corpus (cannot be"
                " found)"
            )
        return "; ".join(parts)


def coverage(run: Run, qrels: Qrels, corpus_ids: Collection[str] | None = None) -> Coverage:
    """Counts what does not fit together. ``corpus_ids``: at least those relevant passages that exist; absent
    = not checked."""
    judged = {question for question, grades in qrels.items() if any(grade > 0 for grade in grades.values())}
    relevant = {passage for question in judged for passage, grade in qrels[question].items() if grade > 0}
    return Coverage(
        num_evaluated=len(judged),
        num_without_judgements=sum(question not in qrels for question in run),
        num_without_relevant=len(qrels) - len(judged),
        num_not_in_run=sum(not run.get(question) for question in judged),
        num_judged_passages_not_in_corpus=(
            None if corpus_ids is None else sum(passage not in corpus_ids for passage in relevant)
        ),
    )


def format_table(rows: Mapping[str, Mapping[str, float]], columns: Mapping[str, str]) -> str:
    """One line per row, one column per metric, three decimals; a metric that a row lacks is shown as ``-``,
    one that all lack is left out.

    ``columns`` gives the metrics with their headings.
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
    """Lines of cells, the first of them headings, as columns; the first column is aligned to the left, the
    others to the right."""
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]
        )
        for line in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _falling_scores(question: str, ranking: Sequence[tuple[str, float]]) -> dict[str, float]:
    scores = {passage: float(len(ranking) - rank) for rank, (passage, _) in enumerate(ranking)}
    if len(scores) != len(ranking):
        raise InputError(f"a passage is listed more than once for question {question!r}")
    return scores
