"""The table of the study: means over seeds, paired differences and their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.study_table import Measured, interval, per_question, table


def run_of(values: dict[str, float], seconds: float | None = None) -> Measured:
    return Measured({"mrr@10": values}, seconds, seconds)


def test_interval_of_a_constant_difference_is_that_difference() -> None:
    assert interval(np.full(50, 0.25)) == (0.25, 0.25)


def test_interval_is_as_wide_as_the_normal_approximation() -> None:
    differences = np.random.default_rng(1).normal(0.1, 1.0, 1000)
    low, high = interval(differences)
    assert low < differences.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * differences.std() / 1000**0.5, rel=0.06)
    assert interval(differences) == (low, high)


def test_questions_are_paired_by_id_and_averaged_over_seeds() -> None:
    runs = [run_of({"b": 1.0, "a": 0.0}), run_of({"a": 0.5, "b": 1.0})]
    assert per_question(runs, "mrr@10").tolist() == [0.25, 1.0]
    with pytest.raises(ValueError, match="different questions"):
        per_question([*runs, run_of({"a": 1.0})], "mrr@10")


def test_table_has_what_was_measured_and_nothing_else() -> None:
    static = {1: run_of({"a": 0.0, "b": 0.5}, 3.0), 2: run_of({"a": 0.5, "b": 0.5})}
    words, other = {0: run_of({"a": 0.5, "b": 0.75})}, {2: run_of({"a": 0.375, "b": 0.625}, 40.0)}
    lines = table(
        {"BM25": words, "static": static, "mined": {}, "transformer": other}, ["mrr@10"], "static"
    ).splitlines()
    assert lines[0] == "|  | seeds | MRR@10 | difference in MRR@10 | wall s | CPU s |"
    assert lines[2:] == [
        "| BM25 | 1 | 0.625 | +0.250 (+0.250 to +0.250) |  |  |",
        "| static | 2 | 0.375 (0.250 to 0.500) |  | 3 | 3 |",
        "| transformer | 1 | 0.500 | +0.000 (-0.125 to +0.125) | 40 | 40 |",
    ]
