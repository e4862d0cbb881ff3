"""Fusion: values by hand, passages that one side lacks, ties."""

import random
from typing import Any

import pytest

from dpr.indexer.ranking import Ranking
from dpr.indexer.ranking import fuse_linear as fuse_lists

DENSE = [("a", 90.0), ("b", 80.0), ("c", 70.0)]
WORDS = [("c", 12.0), ("d", 9.0), ("a", 4.0)]


def fuse_linear(first: Ranking, second: Ranking, **options: Any) -> Ranking:
    return fuse_lists([first], [second], **options)[0]


def test_linear_minmax_by_hand() -> None:
    fused = fuse_linear(DENSE, WORDS, weight=0.25, k=10)
    assert [passage for passage, _ in fused] == ["c", "d", "a", "b"]
    assert dict(fused) == pytest.approx({"c": 0.75, "d": 0.75 * 5 / 8, "a": 0.25, "b": 0.125})


def test_empty_and_constant_lists_are_defined() -> None:
    assert fuse_linear([], [], weight=0.5, k=5) == []
    assert [passage for passage, _ in fuse_linear(DENSE, [], weight=0.5, k=2)] == ["a", "b"]
    constant = fuse_linear([("q", 1.0), ("p", 1.0)], [], weight=1.0, k=5)
    assert [passage for passage, _ in constant] == ["p", "q"], "equal scores: the smaller id first"


@pytest.mark.parametrize("k", [1, 5, 100])
def test_questions_fused_together_are_fused_as_each_alone(k: int) -> None:
    """The reference sorts by (score descending, id)."""
    rng = random.Random(0)

    def ranking() -> Ranking:
        ids = rng.sample([f"p{number}" for number in range(40)], rng.randint(0, 30))
        return sorted(((key, float(rng.randint(0, 6))) for key in ids), key=lambda hit: -hit[1])

    first, second = [ranking() for _ in range(30)], [ranking() for _ in range(30)]
    for weight in (0.0, 0.35, 1.0):
        fused = fuse_lists(first, second, weight=weight, k=k)
        assert fused == [
            fuse_linear(ours, theirs, weight=weight, k=k) for ours, theirs in zip(first, second, strict=True)
        ]
        for row, (ours, theirs) in enumerate(zip(first, second, strict=True)):
            mine = dict(fuse_linear(ours, [], weight=1.0, k=99))
            yours = dict(fuse_linear([], theirs, weight=0.0, k=99))
            scores = {
                key: weight * mine.get(key, 0.0) + (1.0 - weight) * yours.get(key, 0.0)
                for key in mine.keys() | yours.keys()
            }
            given = (mine.keys() if weight > 0 else set()) | (yours.keys() if weight < 1 else set())
            scores = {key: score for key, score in scores.items() if key in given}
            assert fused[row] == sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:k]
