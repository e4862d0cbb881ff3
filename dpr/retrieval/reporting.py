"""What a metrics file says about a retrieval beside its metrics: ranks of right passages, example questions, values per question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpr.core.records import Passage, Question
from dpr.evaluation.ranking_metrics import Qrels
from dpr.evaluation.report.examples import NUM_EXAMPLES, NUM_HITS, example_of, spread
from dpr.formats.metrics_files import PerQuestion, write_metrics
from dpr.indexer.ranking import Ranking
from dpr.retrieval.judging import Judged, to_results


def example_rows(questions: Sequence[Question], qrels: Qrels | None) -> list[int]:
    """Questions for a report. They follow from questions and judgements alone, so that all runs over them show the same."""
    rows = range(len(questions))
    if qrels is None:
        return spread(rows, NUM_EXAMPLES)
    return spread((row for row in rows if any(grade > 0 for grade in qrels.get(questions[row].id, {}).values())), NUM_EXAMPLES)


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
    found = passages or {}
    shown = [_example(questions[row], texts[row], rankings[row], found, judged, row) for row in rows] if found else []
    measured = {"metrics": judged.metrics, "first_right_rank": judged.rank_counts(num_docs), "examples": shown}
    report = {**facts, "num_questions": len(questions), "n_docs": num_docs, **measured}
    write_metrics(file, report, PerQuestion([question.id for question in questions], list(texts), judged.values), note=note)


def _example(question: Question, text: str, ranking: Ranking, passages: Mapping[str, Passage], judged: Judged, row: int) -> dict[str, Any]:
    kept = [place for place, (passage, _) in enumerate(ranking[:NUM_HITS]) if passage in passages]
    right = None if judged.right is None else [[judged.right[row][place] for place in kept]]
    (result,) = to_results([question], [text], [[ranking[place] for place in kept]], passages, right)
    return asdict(replace(example_of(result), first_right_rank=judged.first_right_rank(row)))
