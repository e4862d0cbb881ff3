from __future__ import annotations

import random
import time
from typing import Any

import pytest

from dpr.core.errors import ConfigError
from dpr.core.records import Passage, Question
from dpr.evaluation.ranking_metrics import evaluate_run, metric_names
from dpr.indexer.fusion import fuse_linear
from dpr.indexer.ranking import Ranking
from dpr.retrieval.judging import WEIGHTS, judge_by_answers, judge_by_qrels, weight_values

WORDS = "ba be bi bo bu da de di do du".split()


def world(num_questions: int, listed: int) -> dict[str, Any]:
    """Random rankings, graded judgements of some questions (some passages in no ranking), and answers."""
    rng = random.Random(0)
    ids = [f"p{number:05d}" for number in range(4 * listed)]
    passages = {key: Passage(" ".join(rng.choices(WORDS, k=6)), "", key) for key in ids}
    questions = [
        Question("q", f"q{row}", (" ".join(rng.choices(WORDS, k=2)),)) for row in range(num_questions)
    ]

    def ranking() -> Ranking:
        return sorted(((key, rng.random()) for key in rng.sample(ids, listed)), key=lambda hit: -hit[1])

    sides: list[list[Ranking]] = [[ranking() for _ in questions] for _ in range(2)]
    qrels = {
        question.id: {key: rng.choice([-1, 0, 1, 1, 2, 3]) for key in rng.sample(ids, 9)}
        for question in questions[::-1][: -num_questions // 3]
    }
    return {
        "questions": questions,
        "dense": sides[0],
        "lexical": sides[1],
        "qrels": qrels,
        "passages": passages,
    }


@pytest.mark.parametrize("k", [3, 20])
def test_every_weight_has_the_value_of_fusing_and_judging_with_it(k: int) -> None:
    """Equal, not close: the choice between weights must not change."""
    made = world(40, 25)
    for metric in [*metric_names((1, 20) if k == 20 else (1,)), "answer_accuracy@1"]:
        found = weight_values(**made, metric=metric, k=k, normalisation="minmax", answer_match="string")
        for weight in WEIGHTS[::5]:
            fused = fuse_linear(made["dense"], made["lexical"], weight=weight, k=k)
            if metric.startswith("answer"):
                judged = judge_by_answers(
                    made["questions"], fused, made["passages"], kind="string", num_docs=k
                )
                assert found[weight] == judged.metrics["accuracy@1"]
            else:
                assert (
                    found[weight]
                    == judge_by_qrels(made["questions"], fused, made["qrels"], num_docs=k).metrics[metric]
                ), (
                    metric,
                    weight,
                )


def test_with_answers_alone_their_accuracy_is_compared() -> None:
    made = world(20, 10) | {"qrels": None}
    found = weight_values(**made, metric="accuracy@5", k=5, normalisation="zscore", answer_match="string")
    fused = fuse_linear(made["dense"], made["lexical"], weight=0.5, k=5, normalisation="zscore")
    assert (
        found[0.5]
        == judge_by_answers(made["questions"], fused, made["passages"], kind="string", num_docs=5).metrics[
            "accuracy@5"
        ]
    )
    with pytest.raises(
        ConfigError, match="tune_metric=mrr@10 is not measured here; choose one of accuracy@1"
    ):
        weight_values(**made, metric="mrr@10", k=5, normalisation="minmax", answer_match="string")


def test_all_weights_take_less_time_than_fusing_and_judging_a_few() -> None:
    """21 weights against 8, on this machine at this moment, so that no limit in seconds is needed."""
    made = world(150, 200)
    start = time.perf_counter()
    weight_values(**made, metric="ndcg@10", k=100, normalisation="minmax", answer_match=None)
    middle = time.perf_counter()
    for _ in range(8):
        run = {
            f"q{row}": hits
            for row, hits in enumerate(fuse_linear(made["dense"], made["lexical"], weight=0.5, k=100))
        }
        evaluate_run(run, made["qrels"])
    assert middle - start < time.perf_counter() - middle
