"""Ranking metrics: by hand, against ir-measures, and safe from trec_eval's own idea of ties."""

import math
import random
import time
from collections.abc import Iterable

import pytest

from dpr.core.errors import InputError
from dpr.core.records import Question
from dpr.evaluation import answer_match
from dpr.evaluation.answer_match import has_answer, match_hits, warn_of_empty_answers
from dpr.evaluation.evaluator import Evaluator
from dpr.evaluation.ranking_metrics import CUTOFFS, Qrels, Run, evaluate_questions, format_table, mean_metrics
from tests.helpers.patience import patient


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


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("Paris", "He lives in paris.", True),
        ("new york", "the NEW  York\tTimes", True),
        ("york new", "the New York Times", False),
        ("new york", "new in york", False),
        ("art", "a party of artists", False),  # whole tokens, never parts of them
        ("U.S.", "the u. s. army", True),  # every mark is a token of its own, spaces do not matter
        ("U.S.", "the US army", False),
        ("3.5", "about 3.5 km", True),
        ("don't", "do n't", False),
        ("caf\u00e9", "at the cafe\u0301", True),  # NFD: composed and decomposed are the same
        ("cafe", "at the caf\u00e9", False),  # accents are kept
        # marks belong to the run
        ("\u0939\u093f\u0928\u094d\u0926\u0940", "\u0939\u093f\u0928\u094d\u0926\u0940 text", True),
        ("a_b", "a _ b", True),  # underscore is no letter
        ("\u00c5NGSTR\u00d6M", "\u00e5ngstr\u00f6m", True),
        # capital sigma: final in the token, not in the text
        ("\u039f\u0394\u039f\u03a3", "\u039f\u0394\u039f\u03a3.\u0391", True),
        # a sigma that is not final is another letter
        ("\u03bf\u03b4\u03bf\u03c3", "\u039f\u0394\u039f\u03a3", False),
        ("x", "", False),
    ],
)
def test_string_match(answer: str, text: str, expected: bool) -> None:
    assert has_answer([answer], text, "string") is expected


def test_string_match_equals_a_slow_search_for_the_token_list() -> None:
    rng = random.Random(0)
    alphabet = ["a", "b", "A", " ", ".", "-", "e\u0301", "1", "\n"]
    matches = 0
    for _ in range(3000):
        text = "".join(rng.choices(alphabet, k=rng.randrange(12)))
        answer = "".join(rng.choices(alphabet, k=rng.randrange(4)))
        words, wanted = slow_tokens(text), slow_tokens(answer)
        expected = bool(wanted) and any(
            words[start : start + len(wanted)] == wanted for start in range(len(words) - len(wanted) + 1)
        )
        assert has_answer([answer], text) is expected, (answer, text)
        matches += expected
    assert 200 < matches < 2700


def slow_tokens(text: str) -> list[str]:
    tokens: list[str] = []
    in_run = False
    for character in text.lower():
        is_word = character.isalnum() or character == "\u0301"
        if is_word and in_run:
            tokens[-1] += character
        elif not character.isspace():
            tokens.append(character)
        in_run = is_word
    return tokens


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (r"19\d\d", "born in 1972", True),
        (r"^second", "first\nSECOND line", True),
        (r"first$", "First\nsecond", True),
        (r"\bart\b", "party", False),
        ("caf\u00e9", "cafe\u0301", True),
        (r"(unclosed", "(unclosed", False),
    ],
)
def test_regex_match(pattern: str, text: str, expected: bool) -> None:
    assert has_answer([pattern], text, "regex") is expected


def test_any_of_the_answers_is_enough_and_none_without_answers() -> None:
    assert has_answer(["no", "yes"], "yes indeed")
    assert not has_answer([], "yes indeed")
    assert not has_answer(["(", "z"], "yes", "regex")
    assert has_answer(["(", "y"], "yes", "regex")


def test_a_pattern_that_explodes_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_match, "REGEX_TIMEOUT_S", 0.2)
    start = time.monotonic()
    assert not has_answer([r"(x+x+)+(?<!x)y"], "x" * 5000 + "z", "regex")
    assert time.monotonic() - start < patient(2)


TEXTS = {"p1": "Rome is old", "p2": "Paris is big", "p3": "neither"}


def test_hits_are_matched_in_their_order() -> None:
    matched = match_hits(
        [["Rome"], ["Paris", "neither"], ["x"]], [["p2", "p1"], ["p3", "p1", "p2"], []], TEXTS
    )
    assert matched == [[False, True], [True, False, True], []]


@pytest.mark.parametrize("kind", ["string", "regex"])
@pytest.mark.parametrize("answer", ["", " ", "\n\t", "\u200b", "\u00a0\u2028", "\x00"])
def test_an_empty_answer_matches_nothing_and_is_said(
    answer: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = "Élan is \u200b a\u00a0word\n\t\u2028\x00 of a text"
    assert not has_answer([answer], text, kind)
    assert has_answer([answer, "word"], text, kind)
    assert match_hits([[answer], [answer, "of"]], [["p"], ["p"]], {"p": text}, kind=kind) == [[False], [True]]
    warn_of_empty_answers([Question("q", "a", ("x",), 1), Question("r", "b", ("y", answer), 7)])
    assert "1 answers are empty" in caplog.text and "line 7" in caplog.text
