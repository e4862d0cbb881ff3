"""Ranking metrics: by hand, against ir-measures, and safe from trec_eval's own idea of ties."""

import math
from collections.abc import Iterable

import pytest

from dpr.core.errors import InputError
from dpr.core.records import Question
from dpr.evaluation.evaluator import Evaluator
from dpr.evaluation.ranking_metrics import CUTOFFS, Qrels, Run, evaluate_questions, format_table, mean_metrics


def evaluate_run(run: Run, qrels: Qrels, cutoffs: Iterable[int] = CUTOFFS) -> dict[str, float]:
    return mean_metrics(evaluate_questions(run, qrels, cutoffs))


def test_metrics_by_hand() -> None:
    qrels = {"q": {"a": 2, "b": 1, "z": 0}}
    run = {"q": [("x", 3.0), ("b", 2.0), ("a", 1.0)]}
    values = evaluate_run(run, qrels, cutoffs=(1, 2, 3))
    ideal = 2 + 1 / math.log2(3)
    assert values == pytest.approx(
        {
            "accuracy@1": 0, "accuracy@2": 1, "accuracy@3": 1,
            "recall@1": 0, "recall@2": 0.5, "recall@3": 1,
            "mrr@1": 0, "mrr@2": 0.5, "mrr@3": 0.5,
            "ndcg@1": 0, "ndcg@2": (1 / math.log2(3)) / ideal, "ndcg@3": (1 / math.log2(3) + 2 / 2) / ideal,
            "map": (1 / 2 + 2 / 3) / 2,
        }
    )  # fmt: skip


@pytest.mark.parametrize("rank", [1, 2, 3, 9, 10, 11, 99, 100, 101])
def test_reciprocal_rank_stops_exactly_at_the_cutoff(rank: int) -> None:
    run = {"q": [(f"n{number}", 1.0) for number in range(1, rank)] + [("gold", 0.0)]}
    values = evaluate_run(run, {"q": {"gold": 1}}, cutoffs=(1, 2, 10, 100))
    for k in (1, 2, 10, 100):
        assert values[f"mrr@{k}"] == pytest.approx(1 / rank if rank <= k else 0)


def test_the_order_of_the_list_counts_not_ties_or_narrowed_scores() -> None:
    for first, second in ((1.0, 1.0), (1.00000001, 1.0), (float("inf"), 5.0), (0.0, 1.0)):
        run = {"q": [("a_gold", first), ("z_other", second)]}
        assert evaluate_run(run, {"q": {"a_gold": 1}}, cutoffs=(1,))["accuracy@1"] == 1


def test_a_judged_question_without_hits_counts_as_zero() -> None:
    qrels = {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 1}, "unanswerable": {"a": 0}}
    values = evaluate_run({"q1": [("a", 1.0)], "q2": []}, qrels, cutoffs=(10,))
    assert values["recall@10"] == pytest.approx(1 / 3)


def test_no_judged_question_and_repeated_passages_are_refused() -> None:
    with pytest.raises(InputError, match="no question"):
        evaluate_run({"q": [("a", 1.0)]}, {"other": {"a": 0}})
    with pytest.raises(InputError, match="'q'"):
        evaluate_run({"q": [("a", 1.0), ("a", 0.5)]}, {"q": {"a": 1}})


def fit(asked: list[str], run: Run, qrels: Qrels) -> str:
    evaluator = Evaluator([Question(key, key) for key in asked], qrels)
    return evaluator.coverage([run.get(key, ()) for key in asked])


def test_what_does_not_fit_together_is_counted_in_one_line() -> None:
    run = {"q1": [("a", 1.0)], "unjudged": [("a", 1.0)], "q2": []}
    qrels = {"q1": {"a": 1, "gone": 2, "gone but irrelevant": 0}, "q2": {"b": 1}}
    qrels |= {"absent": {"a": 1}, "none": {"a": 0}}
    asked = [*run, "absent", "none"]
    line = fit(asked, run, qrels)
    assert (
        line
        == "3 questions evaluated; 1 without judgements left out; 1 without a relevant passage left out; 2"
        " judged but without any hit (count as 0)"
    )
    assert fit(["q1"], {"q1": [("a", 1.0)]}, {"q1": {"a": 1}}) == "1 questions evaluated"


def test_a_table_lines_up() -> None:
    table = format_table(
        {"BM25": {"accuracy@20": 0.75123}, "hybrid": {"accuracy@20": 0.8, "mrr@10": 0.5}},
        {"accuracy@20": "top-20", "mrr@10": "MRR@10"},
    )
    assert table.splitlines() == [
        "        top-20  MRR@10",
        "------  ------  ------",
        "BM25     0.751       -",
        "hybrid   0.800   0.500",
    ]
