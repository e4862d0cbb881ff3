"""Each filter leaves out what it is for, and nothing else."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from dpr.core.errors import ConfigError
from dpr.core.records import Passage
from dpr.mining.negatives import Mined, choose_negatives, veto
from dpr.mining.settings import MiningSettings

POSITIVE = Passage("one two three four five six seven eight nine ten", "T", "p")


def candidates(*texts: str) -> list[Passage]:
    """Found in this order, with scores 9, 8, 7 ..."""
    return [Passage(text, "", f"c{rank}") for rank, text in enumerate(texts, 1)]


def mine(
    found: list[Passage],
    settings: MiningSettings | None = None,
    scores: dict[str, float] | None = None,
    **options: Any,
) -> Mined:
    """With ``scores``, the cross-encoder's score of a passage by its text."""
    ranking = [(str(passage.id), 10.0 - rank) for rank, passage in enumerate(found, 1)]
    texts = {str(passage.id): passage for passage in found}
    settings = settings or MiningSettings()
    most = settings.per_question * (1 if scores is None else 2)
    options = {"positives": (POSITIVE,), "most": most, **options}
    mined = choose_negatives(ranking, texts.__getitem__, **options, settings=settings)
    if scores is not None:
        veto([("question", mined)], TableScorer(scores), settings.per_question)
    return mined


def chosen(
    found: list[Passage], settings: MiningSettings | None = None, **options: Any
) -> tuple[list[int], dict[str, int]]:
    mined = mine(found, settings, **options)
    return [candidate.rank for candidate in mined.negatives], dict(mined.left_out)


class TableScorer:
    """A cross-encoder that knows its scores by heart, and notes what it was asked, call by call."""

    fingerprint = "table"

    def __init__(self, scores: dict[str, float]) -> None:
        self._scores = scores
        self.calls: list[list[tuple[str, str]]] = []

    def log_odds(self, pairs: Sequence[tuple[str, Passage]]) -> list[float]:
        self.calls.append([(question, passage.text) for question, passage in pairs])
        scores = [self._scores[passage.text] for _, passage in pairs]
        return [math.log(score / (1 - score)) for score in scores]


def test_known_positives_are_recognised_by_id_and_by_text() -> None:
    found = [
        Passage("text changed", "", "p"),
        *candidates("other", "One  two three four five six seven eight nine TEN", "another")[1:],
    ]
    assert chosen(found) == ([3], {"known positive": 2})


def test_a_passage_without_text_is_no_negative_since_training_would_refuse_it() -> None:
    found = [*candidates("a", " \n"), Passage("", "a title alone", "t")]
    assert chosen(found) == ([1], {"without text": 2})


def test_near_duplicates_of_a_positive_are_left_out() -> None:
    # 9 of 11 words in common is above 0.8, 8 of 12 is not
    found = candidates(
        "one two three four five six seven eight nine X", "one two three four five six seven eight X Y"
    )
    assert chosen(found) == ([2], {"near-duplicate of a positive": 1})


def test_passages_that_hold_an_answer_are_left_out() -> None:
    found = candidates("Paris is large", "comparison is nothing", "London is large")
    assert chosen(found, answers=("paris",)) == ([2, 3], {"holds an answer": 1})


def test_scores_near_the_positive_s_are_left_out_where_it_is_known() -> None:
    found = candidates("a", "b", "c")  # scores 9, 8, 7
    settings = MiningSettings(max_relative_score=0.8)
    assert chosen(found, settings, positive_score=10.0) == ([2, 3], {"scores too high": 1})
    assert chosen(found, settings, positive_score=None)[0] == [1, 2, 3]


@pytest.mark.parametrize(
    ("positive", "highest"), [(10.0, 9.0), (0.5, 0.45), (-10.0, -11.0), (-0.5, -0.55), (0.0, math.inf)]
)
def test_a_relative_margin_lies_below_the_positive_whatever_its_sign(positive: float, highest: float) -> None:
    assert MiningSettings(max_relative_score=0.9).highest_score(positive) == pytest.approx(highest)


def test_candidates_above_the_positive_are_counted() -> None:
    mined = mine(candidates("a", POSITIVE.text, "c", "d"), positive_score=7.5)  # scores 9, 8, 7, 6
    assert (mined.candidates, mined.above_positive) == (4, 1)


def test_the_cross_encoder_vetoes_from_its_threshold_on() -> None:
    found = candidates("a", "b", "c", "d")
    settings = MiningSettings(per_question=2)
    scores = {"a": 0.5, "b": 0.49, "c": 0.9, "d": 0.1}
    mined = mine(found, settings, scores=scores)
    assert [negative.passage.text for negative in mined.negatives] == ["b", "d"]
    assert [one.cross_encoder_score for one in mined.negatives] == pytest.approx([0.49, 0.1], abs=1e-12)
    assert mined.left_out == {"vetoed by the cross-encoder": 2}


def test_negatives_do_not_repeat_each_other_or_existing_ones() -> None:
    found = candidates("a b c", "A, b c!", "d e f", "g")
    assert chosen(found, existing=(Passage("d e f"),)) == ([1, 4], {"repeats another negative": 2})


def test_the_window_counts_ranks_of_all_that_was_found() -> None:
    found = candidates(*"abcdefgh")
    assert chosen(found, MiningSettings(from_rank=3, to_rank=6, per_question=2))[0] == [3, 4]
    mined = mine(found, MiningSettings(from_rank=3, to_rank=6))
    assert mined.candidates == 4


@pytest.mark.parametrize(
    "values", [{"per_question": 0}, {"from_rank": 9, "to_rank": 8}, {"max_relative_score": float("nan")}]
)
def test_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MiningSettings(**values).check()
