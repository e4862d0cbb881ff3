from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpr.core.errors import InputError
from dpr.formats.results import (
    Hit,
    RetrievedQuestion,
    iter_results,
    read_trec_run,
    write_results,
    write_trec_run,
)
from tests.helpers.examples import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
SCORES = st.floats(allow_nan=False, allow_infinity=False)
HITS = st.lists(st.builds(Hit, TEXT, TEXT, TEXT, SCORES, st.sampled_from([None, True, False])), max_size=3)
RUNS = st.dictionaries(
    st.text("ab1", min_size=1),
    st.dictionaries(st.text("xy2", min_size=1), SCORES, min_size=1, max_size=4),
    max_size=3,
)
RESULTS = st.lists(
    st.builds(RetrievedQuestion, TEXT, TEXT, st.lists(TEXT, max_size=2).map(tuple), HITS), max_size=3
)


@settings(
    max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(results=RESULTS, name=st.sampled_from(["r.json", "r.json.gz"]))
def test_results_written_are_read_back(
    tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch, results: Any, name: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    path = tmp_path_factory.mktemp("round") / name
    write_results(path, results)
    assert list(iter_results(path)) == results


def test_results_file_is_dprs_byte_for_byte_layout(tmp_path: Path) -> None:
    """An array indented by 4 with scores as strings; U+2028 is a line end to Python's splitlines, not to
    JSON."""
    hit = Hit("wiki:1", "T\u2028", "text", 81.25, True)
    write_results(
        tmp_path / "r.json", [RetrievedQuestion("who?", "0", ("a",), [hit, Hit("2", "", "x", -1.0)])] * 2
    )
    text = (tmp_path / "r.json").read_text(encoding="utf-8")
    loaded = json.loads(text)
    assert text == json.dumps(loaded, indent=4, ensure_ascii=False) + "\n"
    assert loaded[0]["ctxs"] == [
        {"id": "wiki:1", "title": "T\u2028", "text": "text", "score": "81.25", "has_answer": True},
        {"id": "2", "title": "", "text": "x", "score": "-1.0", "has_answer": None},
    ]
    write_results(tmp_path / "r.json", [])
    assert json.loads((tmp_path / "r.json").read_text()) == []


@pytest.mark.parametrize("name", ["r.json", "r.json.gz"])
def test_results_without_texts_are_small_and_read_as_hits_without_texts(tmp_path: Path, name: str) -> None:
    whole, bare = tmp_path / f"whole-{name}", tmp_path / f"bare-{name}"
    hits = [
        Hit(str(number), f"title {number}", f"{number} is a long text. " * 40, 0.5, False)
        for number in range(50)
    ]
    results = [RetrievedQuestion("who?", "0", ("a",), hits)]
    write_results(whole, results)
    write_results(bare, results, with_texts=False)
    assert bare.stat().st_size < whole.stat().st_size / 3
    assert list(iter_results(bare)) == [
        RetrievedQuestion(
            "who?", "0", ("a",), [Hit(hit.id, "", "", hit.score, hit.has_answer) for hit in hits]
        )
    ]


def test_results_of_dpr_are_read(tmp_path: Path) -> None:
    context = {"id": 1, "title": "t", "text": "x", "score": "7.5", "has_answer": False, "is_wiki": 1}
    (tmp_path / "r.json").write_text(json.dumps([{"question": "q", "answers": ["a"], "ctxs": [context]}] * 2))
    hit = Hit("1", "t", "x", 7.5, False)
    assert list(iter_results(tmp_path / "r.json")) == [
        RetrievedQuestion("q", key, ("a",), [hit]) for key in ("0", "1")
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ctxs": None}, "answers and ctxs are not both lists"),
        ({"ctxs": ["x"]}, "an entry of ctxs is the string 'x'"),
        (
            {"ctxs": [{"id": "1", "text": "x", "score": "high"}]},
            "the score is the string 'high', expected a finite number",
        ),
        ({"ctxs": [{"id": "1", "text": "x", "score": "nan"}]}, "the score is the string 'nan'"),
        (
            {"ctxs": [{"id": "1", "text": "x", "score": 1, "has_answer": "yes"}]},
            "has_answer is the string 'yes'",
        ),
        ({"ctxs": [{"id": None, "text": "x", "score": 1}]}, "id is null"),
        ({"question": 5}, "question is the number 5"),
        (
            {"ctxs": [{"id": "1", "text": "t", "score": "1e400"}]},
            "the score is the string '1e400', expected a finite number",
        ),
        ({"answers": [1]}, "answers[] is the number 1"),
    ],
)
def test_bad_results_are_refused_by_file_and_line(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    good = {"question": "q", "answers": [], "ctxs": []}
    (tmp_path / "r.json").write_text("[\n" + json.dumps(good) + ",\n" + json.dumps(good | change) + "]")
    with pytest.raises(InputError) as caught:
        list(iter_results(tmp_path / "r.json"))
    assert str(caught.value).startswith(f"{tmp_path}/r.json:3: {message}")


@settings(
    max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(run=RUNS)
def test_runs_written_best_first_are_read_back(
    tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    path = tmp_path_factory.mktemp("round") / "run.trec"
    ordered = {
        question: sorted(hits.items(), key=lambda hit: (-hit[1], hit[0])) for question, hits in run.items()
    }
    write_trec_run(path, ordered)
    assert read_trec_run(path) == ordered


def test_run_is_ordered_by_score_then_id_whatever_the_lines_say(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("1 Q0 c 1 0.5 x\n1 Q0 b 3 0.5 x\n\n1\tQ0\ta\t2\t7e-1\tx\n")
    assert read_trec_run(tmp_path / "run") == {"1": [("a", 0.7), ("b", 0.5), ("c", 0.5)]}
    write_trec_run(tmp_path / "run", {"1": [("a", 0.7)]}, tag="me")
    assert (tmp_path / "run").read_text() == "1 Q0 a 1 0.7 me\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 Q0 a 1 0.5\n", "run:1: 5 columns, expected 6"),
        ("1 Q0 a 1 0.5 x\n1 Q0 a 2 0.4 x\n", "run:2: passage 'a' is listed twice"),
        ("1 Q0 a 1 nan x\n", "run:1: the score is the string 'nan', expected a finite number"),
        (
            "1 Q0 a 1 0.5 x\n1 Q0 b 2 1e400 x\n",
            "run:2: the score is the string '1e400', expected a finite number",
        ),
        ("1 Q0 a 1 -inf x\n", "run:1: the score is the string '-inf', expected a finite number"),
        ("1 Q0 a 1 0,5 x\n", "run:1: the score is the string '0,5'"),
    ],
)
def test_bad_runs_are_refused_by_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run").write_text(text)
    with pytest.raises(InputError) as caught:
        read_trec_run(tmp_path / "run")
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


@pytest.mark.parametrize(
    ("question", "passage", "tag"),
    [("a b", "c", "t"), ("a", "c\td", "t"), ("", "c", "t"), ("a", "c", "my run")],
)
def test_ids_that_a_run_cannot_carry_are_refused(
    tmp_path: Path, question: str, passage: str, tag: str
) -> None:
    with pytest.raises(InputError, match="white space"):
        write_trec_run(tmp_path / "run", {question: [(passage, 1.0)]}, tag)
    assert not (tmp_path / "run").exists()
