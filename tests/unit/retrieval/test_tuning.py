from __future__ import annotations

import random
from typing import Any

import pytest

from dpr.core.records import Passage, Question
from dpr.evaluation.evaluator import Evaluator
from dpr.indexer.ranking import Ranking, fuse_linear
from dpr.jobs.retrieve import WEIGHTS, weight_values

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
    evaluator = Evaluator(made["questions"], made["qrels"], "string", k)
    fused = {
        weight: fuse_linear(made["dense"], made["lexical"], weight=weight, k=k) for weight in WEIGHTS[::5]
    }
    expected = {
        weight: evaluator.evaluate(ranking, made["passages"]).metrics for weight, ranking in fused.items()
    }
    assert {"map", "answer_accuracy@1", "ndcg@1"} <= expected[0.5].keys()
    for metric in evaluator.names():
        found = values(made, evaluator, metric)
        assert {weight: found[weight] for weight in expected} == {
            weight: metrics[metric] for weight, metrics in expected.items()
        }


def values(made: dict[str, Any], evaluator: Evaluator, metric: str) -> dict[float, float]:
    return weight_values(evaluator, made["dense"], made["lexical"], metric=metric, passages=made["passages"])


def test_with_answers_alone_their_accuracy_is_compared() -> None:
    made = world(20, 10)
    evaluator = Evaluator(made["questions"], None, "string", 5)
    found = values(made, evaluator, "accuracy@5")
    fused = fuse_linear(made["dense"], made["lexical"], weight=0.5, k=5)
    assert found[0.5] == evaluator.evaluate(fused, made["passages"]).metrics["accuracy@5"]
