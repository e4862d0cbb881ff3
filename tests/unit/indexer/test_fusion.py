"""Fusion: figures by hand, passages that one side lacks, ties."""

from __future__ import annotations

import pytest

from dpr.indexer.fusion import fuse_linear, fuse_reciprocal_ranks

DENSE = [("a", 90.0), ("b", 80.0), ("c", 70.0)]
WORDS = [("c", 12.0), ("d", 9.0), ("a", 4.0)]


def test_linear_minmax_by_hand() -> None:
    fused = fuse_linear(DENSE, WORDS, weight=0.25, k=10)
    assert [passage for passage, _ in fused] == ["c", "d", "a", "b"]
    assert dict(fused) == pytest.approx({"c": 0.75, "d": 0.75 * 5 / 8, "a": 0.25, "b": 0.125})


def test_linear_zscore_gives_a_missing_passage_the_last_one_s_score() -> None:
    spread = (200 / 3) ** 0.5
    fused = dict(fuse_linear(DENSE, [("x", 1.0), ("y", 1.0)], weight=0.5, k=10, normalisation="zscore"))
    assert fused == pytest.approx({"a": 5 / spread, "b": 0.0, "c": -5 / spread, "x": -5 / spread, "y": -5 / spread})


@pytest.mark.parametrize(("weight", "expected"), [(1.0, DENSE), (0.0, WORDS)])
def test_the_ends_of_the_weight_are_the_single_rankings(weight: float, expected: list[tuple[str, float]]) -> None:
    fused = [passage for passage, _ in fuse_linear(DENSE, WORDS, weight=weight, k=3)]
    assert fused[:2] == [passage for passage, _ in expected][:2]


@pytest.mark.parametrize("normalisation", ["minmax", "zscore"])
def test_empty_and_constant_lists_are_defined(normalisation: str) -> None:
    assert fuse_linear([], [], weight=0.5, k=5, normalisation=normalisation) == []
    assert [passage for passage, _ in fuse_linear(DENSE, [], weight=0.5, k=2, normalisation=normalisation)] == ["a", "b"]
    constant = fuse_linear([("q", 1.0), ("p", 1.0)], [], weight=1.0, k=5, normalisation=normalisation)
    assert [passage for passage, _ in constant] == ["p", "q"], "equal scores: the smaller id first"


def test_scores_of_any_scale_fuse_the_same() -> None:
    scaled = [(passage, 1000 * score - 7) for passage, score in DENSE]
    for normalisation in ("minmax", "zscore"):
        expected = fuse_linear(DENSE, WORDS, weight=0.5, k=4, normalisation=normalisation)
        found = fuse_linear(scaled, WORDS, weight=0.5, k=4, normalisation=normalisation)
        assert dict(found) == pytest.approx(dict(expected))


def test_reciprocal_ranks_by_hand() -> None:
    fused = fuse_reciprocal_ranks([DENSE, WORDS], k=3)
    assert [passage for passage, _ in fused] == ["a", "c", "b"], "a and c tie, b and d tie"
    assert dict(fused) == pytest.approx({"a": 1 / 61 + 1 / 63, "c": 1 / 63 + 1 / 61, "b": 1 / 62})
    assert [passage for passage, _ in fuse_reciprocal_ranks([[("b", 1.0)], [("a", 1.0)]], k=2)] == ["a", "b"]
