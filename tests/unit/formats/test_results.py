import json
from pathlib import Path

import pytest

from dpr.core.errors import InputError
from dpr.formats.results import Hit, RetrievedQuestion, read_trec_run, write_results, write_trec_run
from tests.helpers.results import read_results


def test_results_file_is_dprs_byte_for_byte_layout(tmp_path: Path) -> None:
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
    packed = [RetrievedQuestion("who?", "0", ("a",), [hit])]
    write_results(tmp_path / "r.json.gz", packed)
    assert read_results(tmp_path / "r.json.gz") == packed
    write_results(tmp_path / "r.json", [])
    assert json.loads((tmp_path / "r.json").read_text()) == []


def test_run_is_ordered_as_trec_eval_does_whatever_the_lines_say(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("1 Q0 c 1 0.5 x\n1 Q0 b 3 0.5 x\n\n1\tQ0\ta\t2\t7e-1\tx\n")
    assert read_trec_run(tmp_path / "run") == {"1": [("a", 0.7), ("c", 0.5), ("b", 0.5)]}
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
