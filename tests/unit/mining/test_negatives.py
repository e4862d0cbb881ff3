"""Each filter leaves out what it is for, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from dpr.core.errors import ConfigError
from dpr.core.records import Passage
from dpr.mining.negatives import Candidate, MiningSettings, choose_negatives

POSITIVE = Passage("one two three four five six seven eight nine ten", "T", "p")


def candidates(*texts: str) -> list[Candidate]:
    return [Candidate(Passage(text, "", f"c{rank}"), 10.0 - rank, rank) for rank, text in enumerate(texts, 1)]


def chosen(found: list[Candidate], settings: MiningSettings | None = None, **options: Any) -> tuple[list[int], dict[str, int]]:
    mined = choose_negatives(found, **{"positives": (POSITIVE,), "row": 0, **options}, settings=settings or MiningSettings())
    return [candidate.rank for candidate in mined.negatives], dict(mined.left_out)


def test_known_positives_are_told_by_id_and_by_text() -> None:
    found = candidates("other", "One  two three four five six seven eight nine TEN", "another")
    found[0] = Candidate(Passage("text changed", "", "p"), 9.0, 1)
    assert chosen(found) == ([3], {"known positive": 2})


def test_near_duplicates_of_a_positive_are_left_out() -> None:
    # 9 of 11 words in common is above 0.8, 8 of 12 is not
    found = candidates("one two three four five six seven eight nine X", "one two three four five six seven eight X Y")
    assert chosen(found) == ([2], {"near-duplicate of a positive": 1})


def test_passages_that_hold_an_answer_are_left_out_unless_kept() -> None:
    found = candidates("Paris is large", "comparison is nothing", "London is large")
    assert chosen(found, answers=("paris",)) == ([2, 3], {"holds an answer": 1})
    assert chosen(found, MiningSettings(keep_answers=True), answers=("paris",))[0] == [1, 2, 3]


def test_scores_near_the_positive_s_are_left_out_where_it_is_known() -> None:
    found = candidates("a", "b", "c")  # scores 9, 8, 7
    settings = MiningSettings(max_relative_score=0.8)
    assert chosen(found, settings, positive_score=10.0) == ([2, 3], {"scores too high": 1})
    assert chosen(found, settings, positive_score=None)[0] == [1, 2, 3]


def test_negatives_do_not_repeat_each_other_or_existing_ones() -> None:
    found = candidates("a b c", "A, b c!", "d e f", "g")
    assert chosen(found, existing=(Passage("d e f"),)) == ([1, 4], {"repeats another negative": 2})


def test_the_window_counts_ranks_of_all_that_was_found() -> None:
    found = candidates(*"abcdefgh")
    assert chosen(found, MiningSettings(from_rank=3, to_rank=6, per_question=2))[0] == [3, 4]
    mined = choose_negatives(found, positives=(POSITIVE,), row=0, settings=MiningSettings(from_rank=3, to_rank=6))
    assert mined.candidates == 4


def test_a_sample_depends_on_seed_and_row_and_covers_the_window() -> None:
    found = candidates(*(f"w{number}" for number in range(20)))
    settings = MiningSettings(pick="sample", per_question=4, from_rank=6)
    drawn = {row: chosen(found, settings, row=row)[0] for row in range(60)}
    assert drawn[0] == chosen(found, settings, row=0)[0]
    assert drawn[0] != chosen(found, MiningSettings(pick="sample", per_question=4, from_rank=6, seed=1), row=0)[0]
    assert {rank for ranks in drawn.values() for rank in ranks} == set(range(6, 21))
    assert all(ranks == sorted(ranks) and len(ranks) == 4 for ranks in drawn.values())


@pytest.mark.parametrize(
    "values",
    [
        {"per_question": 0},
        {"from_rank": 0},
        {"from_rank": 9, "to_rank": 8},
        {"pick": "best"},
        {"near_duplicate": 0},
        {"max_relative_score": -1},
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MiningSettings(**values).check()
