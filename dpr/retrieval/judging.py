"""Rankings -> judged results, metrics and metrics files, in DPR's way (answers in the text) and in the way of
judgement files (qrels)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, Question
from dpr.data.text import plain
from dpr.evaluation.answer_match import match_hits, top_k_hits, warn_of_empty_answers
from dpr.evaluation.ranking_metrics import (
    CUTOFFS,
    Coverage,
    Qrels,
    coverage,
    evaluate_questions,
    mean_metrics,
    metric_by_rank,
    metric_names,
)
from dpr.evaluation.report.examples import NUM_EXAMPLES, NUM_HITS, example_of, spread
from dpr.formats.metrics_files import PerQuestion, write_metrics
from dpr.formats.results import Hit, RetrievedQuestion
from dpr.indexer.fusion import FusedLists
from dpr.indexer.ranking import Ranking

logger = get_logger(__name__)
WEIGHTS = tuple(step / 20 for step in range(21))
_AT_ONCE = 256


@dataclass(frozen=True)
class Judged:
    """``matched``: whether each hit is right, parallel to the rankings; None where nothing was judged.
    ``metrics`` by name."""

    matched: list[list[bool]] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Lines for the log."""
    right: list[list[bool]] | None = None
    """Whether each hit is right by the judgement behind ``metrics``: judgements before answers."""
    rows: tuple[int, ...] = ()
    """Positions of the questions that ``metrics`` are taken over."""
    values: dict[str, list[float | None]] = field(default_factory=dict)
    """The metrics of each question; None where a metric is not taken over it."""

    def first_right_rank(self, row: int) -> int | None:
        """1 for the first hit; None where none is right."""
        flags = self.right[row] if self.right is not None else []
        return flags.index(True) + 1 if True in flags else None

    def rank_counts(self, num_docs: int) -> dict[str, Any] | None:
        """How many questions have their first right passage at rank 1, 2, ... ``num_docs``, and how many have
        none there."""
        if not self.rows:
            return None
        ranks = Counter(self.first_right_rank(row) for row in self.rows)
        return {"counts": [ranks[rank] for rank in range(1, num_docs + 1)], "not_found": ranks[None]}


def cutoffs_up_to(num_docs: int) -> tuple[int, ...]:
    """The usual cut-offs that ``num_docs`` passages allow, and ``num_docs`` itself where it is below all of
    them."""
    return tuple(k for k in CUTOFFS if k <= num_docs) or (num_docs,)


def judge_by_answers(
    questions: Sequence[Question],
    rankings: Sequence[Ranking],
    passages: Mapping[str, Passage],
    *,
    kind: str,
    num_docs: int,
    workers: int = 1,
) -> Judged:
    """accuracy@k: the share of questions with an answer among the first k texts."""
    warn_of_empty_answers(questions)
    hits = [[passage for passage, _ in ranking] for ranking in rankings]
    texts = {passage_id: passages[passage_id].text for ids in hits for passage_id in ids}
    matched = match_hits(
        [question.answers for question in questions], hits, texts, kind=kind, workers=workers
    )
    counts = top_k_hits(matched, num_docs)
    metrics = {f"accuracy@{k}": counts[k - 1] / len(questions) for k in cutoffs_up_to(num_docs)}
    values: dict[str, list[float | None]] = {
        f"accuracy@{k}": [float(any(flags[:k])) for flags in matched] for k in cutoffs_up_to(num_docs)
    }
    return Judged(matched, metrics, (), matched, tuple(range(len(questions))), values)


def judge_by_qrels(
    questions: Sequence[Question],
    rankings: Sequence[Ranking],
    qrels: Qrels,
    *,
    num_docs: int,
    corpus_ids: Collection[str] | None = None,
) -> Judged:
    """accuracy, recall, mrr and ndcg at the usual cut-offs, and map; the note says what did not fit together.

    Judgements of questions that were not asked do not count.

    Raises:
        InputError: no question asked has a relevant passage, or no relevant passage is in the corpus.
    """
    run = {question.id: ranking for question, ranking in zip(questions, rankings, strict=True)}
    asked = {question: grades for question, grades in qrels.items() if question in run}
    each = evaluate_questions(run, asked, cutoffs_up_to(num_docs))
    metrics = mean_metrics(each)
    matched = [
        [asked.get(question.id, {}).get(passage, 0) > 0 for passage, _ in run[question.id]]
        for question in questions
    ]
    rows = tuple(row for row, question in enumerate(questions) if question.id in each)
    values = {
        name: [each[question.id][name] if question.id in each else None for question in questions]
        for name in metrics
    }
    fit = coverage(run, asked, corpus_ids)
    _refuse_foreign_judgements(fit, asked, rankings, any(map(any, matched)))
    return Judged(matched, metrics, (f"judgements: {fit}",), matched, rows, values)


def without_own_ids(questions: Sequence[Question], rankings: Sequence[Ranking], k: int) -> list[Ranking]:
    """Rankings without hits of the question's own id, cut to ``k``."""
    pairs = zip(questions, rankings, strict=True)
    return [[hit for hit in ranking if hit[0] != question.id][:k] for question, ranking in pairs]


def possibly_own(questions: Sequence[Question], rankings: Sequence[Ranking]) -> set[str]:
    """Hits that may be the question itself, by id or because they come first: the passages that
    ``warn_of_own_passages`` compares."""
    own = {
        question.id
        for question, ranking in zip(questions, rankings, strict=True)
        if any(key == question.id for key, _ in ranking)
    }
    return own.union(ranking[0][0] for ranking in rankings if ranking)


def warn_of_own_passages(
    questions: Sequence[Question],
    rankings: Sequence[Ranking],
    passages: Mapping[str, Passage],
    qrels: Qrels | None,
    *,
    setting: str,
) -> None:
    """Says how many questions are passages of the corpus that are not right for them: they find
    themselves."""
    found: list[tuple[Question, str]] = []
    for question, ranking in zip(questions, rankings, strict=True):
        text, grades = plain(question.text), (qrels or {}).get(question.id, {})
        for rank, (key, _) in enumerate(ranking):
            if (rank and key != question.id) or grades.get(key, 0) > 0:
                continue
            passage = passages.get(key)
            is_equal = passage is not None and text in (
                plain(passage.text),
                plain(f"{passage.title} {passage.text}"),
            )
            # By the id alone it is told where it comes first and judgements, which go by ids, do not find it
            # right.
            if is_equal or (qrels is not None and not rank and key == question.id):
                found.append((question, key))
                break
    if found:
        question, key = found[0]
        others = sum(question.id != key for question, key in found)
        kept = f" ({others} are there under another id, which it keeps)" if others else ""
        message = (
            "%d of %d questions are passages of the corpus and find themselves, the first is %r as passage"
            " %r; %s%s"
        )
        logger.warning(message, len(found), len(questions), question.id, key, setting, kept)


def _refuse_foreign_judgements(
    fit: Coverage, asked: Qrels, rankings: Sequence[Ranking], is_any_found: bool
) -> None:
    """Judgements whose ids are not in the corpus give 0 for every metric, which is not a measurement."""
    relevant = relevant_ids(asked)
    retrieved = next((ranking[0][0] for ranking in rankings if ranking), None)
    ids = f"a passage judged relevant is {min(relevant)!r}, a retrieved one {retrieved!r}"
    if fit.num_judged_passages_not_in_corpus == len(relevant):
        hint = "judgements, corpus and vectors must use the same ids, an id_prefix included"
        raise InputError(
            f"none of the {len(relevant)} passages judged relevant is in the corpus: {ids}", hint=hint
        )
    if fit.num_judged_passages_not_in_corpus:
        missing = fit.num_judged_passages_not_in_corpus
        logger.warning(
            "%d of %d passages judged relevant are not in the corpus and cannot be found",
            missing,
            len(relevant),
        )
    if not is_any_found:
        logger.warning(
            "no passage judged relevant was retrieved for any question: %s; every metric is 0", ids
        )


def relevant_ids(qrels: Qrels) -> set[str]:
    """Every passage that is judged relevant for some question."""
    return {passage for grades in qrels.values() for passage, grade in grades.items() if grade > 0}


def to_results(
    questions: Sequence[Question],
    texts: Sequence[str],
    rankings: Sequence[Ranking],
    passages: Mapping[str, Passage] | None,
    matched: Sequence[Sequence[bool]] | None,
) -> list[RetrievedQuestion]:
    """DPR's result records; ``texts`` are the questions as they were asked. Without ``passages``, hits have
    neither title nor text."""
    results = []
    for row, (question, text, ranking) in enumerate(zip(questions, texts, rankings, strict=True)):
        hits = []
        for rank, (passage_id, score) in enumerate(ranking):
            passage = Passage("", "") if passages is None else passages[passage_id]
            hits.append(
                Hit(
                    passage_id,
                    passage.title,
                    passage.text,
                    score,
                    None if matched is None else matched[row][rank],
                )
            )
        results.append(RetrievedQuestion(text, question.id, question.answers, hits))
    return results


def example_rows(questions: Sequence[Question], qrels: Qrels | None) -> list[int]:
    """Questions for a report. They follow from questions and judgements alone, so that all runs over them
    show the same."""
    rows = range(len(questions))
    if qrels is None:
        return spread(rows, NUM_EXAMPLES)
    return spread(
        (row for row in rows if any(grade > 0 for grade in qrels.get(questions[row].id, {}).values())),
        NUM_EXAMPLES,
    )


def first_hits(rankings: Sequence[Ranking], rows: Sequence[int]) -> set[str]:
    """The passages whose texts ``write_report`` shows."""
    return {passage for row in rows for passage, _ in rankings[row][:NUM_HITS]}


def write_report(
    file: Path,
    facts: Mapping[str, Any],
    *,
    questions: Sequence[Question],
    texts: Sequence[str],
    rankings: Sequence[Ranking],
    judged: Judged,
    num_docs: int,
    rows: Sequence[int] = (),
    passages: Mapping[str, Passage] | None = None,
    note: Mapping[str, Any] | None = None,
) -> None:
    """Writes a metrics file.

    Args:
        facts: what was asked and how, put into the file as it is.
        texts: the questions as they were asked.
        rows: questions shown with their first hits, as far as ``passages`` has these.
    """
    shown = (
        [_example(questions[row], texts[row], rankings[row], passages, judged, row) for row in rows]
        if passages
        else []
    )
    measured = {
        "metrics": judged.metrics,
        "first_right_rank": judged.rank_counts(num_docs),
        "examples": shown,
    }
    report = {**facts, "num_questions": len(questions), "n_docs": num_docs, **measured}
    write_metrics(
        file,
        report,
        PerQuestion([question.id for question in questions], list(texts), judged.values),
        note=note,
    )


def _example(
    question: Question, text: str, ranking: Ranking, passages: Mapping[str, Passage], judged: Judged, row: int
) -> dict[str, Any]:
    kept = [index for index, (passage, _) in enumerate(ranking[:NUM_HITS]) if passage in passages]
    right = None if judged.right is None else [[judged.right[row][index] for index in kept]]
    (result,) = to_results([question], [text], [[ranking[index] for index in kept]], passages, right)
    return {**example_of(result), "first_right_rank": judged.first_right_rank(row)}


def weight_values(
    questions: Sequence[Question],
    dense: Sequence[Ranking],
    lexical: Sequence[Ranking],
    *,
    metric: str,
    k: int,
    normalisation: str,
    qrels: Qrels | None,
    answer_match: str | None,
    passages: Mapping[str, Passage],
    workers: int = 1,
) -> dict[float, float]:
    """``metric`` of the fused rankings of length ``k`` for each weight of a linear hybrid, the same bits as
    by fusing and judging each.

    Args:
        metric: as the metrics of a retrieval are named; with judgements and answers, those of the answers
        begin with ``answer_``.
        answer_match: string or regex; None = answers are not looked at.
        passages: with their texts, where answers are.

    Raises:
        ConfigError: the metric is not measured here.
    """
    by_answers = qrels is None or metric.startswith("answer_")
    names = [] if qrels is None else metric_names(cutoffs_up_to(k))
    if answer_match is not None:
        names += [f"{'' if qrels is None else 'answer_'}accuracy@{cutoff}" for cutoff in cutoffs_up_to(k)]
    if metric not in names:
        raise ConfigError(
            f"tune_metric={metric} is not measured here; choose one of {', '.join(names) or 'none'}"
        )
    judged = {} if qrels is None else qrels
    if by_answers:
        rows = list(range(len(questions)))
    else:  # in the order of the judgements, in which their mean is taken
        row_of = {question.id: row for row, question in enumerate(questions)}
        rows = [
            row_of[key]
            for key, grades in judged.items()
            if key in row_of and any(grade > 0 for grade in grades.values())
        ]
    values: dict[float, list[float]] = {weight: [] for weight in WEIGHTS}
    for start in range(0, len(rows), _AT_ONCE):
        part = rows[start : start + _AT_ONCE]
        lists = FusedLists(
            [dense[row] for row in part], [lexical[row] for row in part], normalisation=normalisation
        )
        if by_answers:
            texts = {passage: passages[passage].text for ids in lists.ids for passage in ids}
            answers = [questions[row].answers for row in part]
            grades_of: Sequence[Sequence[int]] = match_hits(
                answers, lists.ids, texts, kind=str(answer_match), workers=workers
            )
        else:
            grades_of = [
                [judged[questions[row].id].get(passage, 0) for passage in ids]
                for row, ids in zip(part, lists.ids, strict=True)
            ]
        relevant = [
            [grade for grade in judged.get(questions[row].id, {}).values() if grade > 0] for row in part
        ]
        grades = np.zeros((len(part), max(map(len, grades_of), default=0)), dtype=np.int64)
        for line, listed in zip(grades, grades_of, strict=True):
            line[: len(listed)] = listed
        for weight in WEIGHTS:
            places, ranks, columns, _ = lists.best(weight, k)
            by_rank = np.zeros((len(part), k), dtype=np.int64)
            by_rank[places, ranks] = grades[places, columns]
            values[weight] += metric_by_rank(metric.removeprefix("answer_"), by_rank, relevant)
    return {weight: sum(listed) / max(len(listed), 1) for weight, listed in values.items()}
