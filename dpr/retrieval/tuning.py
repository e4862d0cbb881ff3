"""The weight of a linear hybrid, chosen on questions with judgements or answers, without fusing and judging again for every candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.records import Passage, Question
from dpr.evaluation.answer_match import match_hits
from dpr.evaluation.ranking_metrics import Qrels, metric_by_rank, metric_names
from dpr.indexer.fusion import FusedLists
from dpr.indexer.ranking import Ranking
from dpr.retrieval.judging import cutoffs_up_to

WEIGHTS = tuple(step / 20 for step in range(21))
_AT_ONCE = 256


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
    """``metric`` of the fused rankings of length ``k`` for each weight: the same bits as fusing and judging them one by one.

    Args:
        metric: as the metrics of a retrieval are named; with judgements and answers, those of the answers begin with ``answer_``.
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
        raise ConfigError(f"tune_metric={metric} is not measured here; choose one of {', '.join(names) or 'none'}")
    judged = {} if qrels is None else qrels
    if by_answers:
        rows = list(range(len(questions)))
    else:  # in the order of the judgements, in which their mean is taken
        row_of = {question.id: row for row, question in enumerate(questions)}
        rows = [row_of[key] for key, grades in judged.items() if key in row_of and any(grade > 0 for grade in grades.values())]
    values: dict[float, list[float]] = {weight: [] for weight in WEIGHTS}
    for start in range(0, len(rows), _AT_ONCE):
        part = rows[start : start + _AT_ONCE]
        lists = FusedLists([dense[row] for row in part], [lexical[row] for row in part], normalisation=normalisation)
        if by_answers:
            texts = {passage: passages[passage].text for ids in lists.ids for passage in ids}
            answers = [questions[row].answers for row in part]
            grades_of: Sequence[Sequence[int]] = match_hits(answers, lists.ids, texts, kind=str(answer_match), workers=workers)
        else:
            grades_of = [[judged[questions[row].id].get(passage, 0) for passage in ids] for row, ids in zip(part, lists.ids, strict=True)]
        relevant = [[grade for grade in judged.get(questions[row].id, {}).values() if grade > 0] for row in part]
        grades = np.zeros((len(part), max(map(len, grades_of), default=0)), dtype=np.int64)
        for line, listed in zip(grades, grades_of, strict=True):
            line[: len(listed)] = listed
        for weight in WEIGHTS:
            places, ranks, columns, _ = lists.best(weight, k)
            by_rank = np.zeros((len(part), k), dtype=np.int64)
            by_rank[places, ranks] = grades[places, columns]
            values[weight] += metric_by_rank(metric.removeprefix("answer_"), by_rank, relevant)
    return {weight: sum(listed) / max(len(listed), 1) for weight, listed in values.items()}
