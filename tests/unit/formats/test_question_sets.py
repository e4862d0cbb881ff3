import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpr.core.errors import InputError
from dpr.core.records import Question
from dpr.formats.question_sets import read_qrels, read_questions, write_qrels, write_questions
from dpr.formats.results import Hit, RetrievedQuestion, read_trec_run, write_results, write_trec_run
from tests.helpers.examples import examples
from tests.helpers.question_files import write_csv_questions
from tests.helpers.results import read_results

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=15)
ANSWERS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10), max_size=3
).map(tuple)
IDS = st.lists(TEXT.filter(bool), unique=True, min_size=1, max_size=4)
WORDS = st.text("abcXYZ019-_.:/", min_size=1, max_size=8)


def questions(text: str, path: Path, **options: Any) -> list[Question]:
    path.write_text(text, encoding="utf-8")
    return read_questions(path, **options)


# Derandomized: some tables of few rows with quotes and newlines in them are not known for csv files.
@settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data(), ids=IDS, name=st.sampled_from(["q.csv", "q.tsv.gz", "q.jsonl"]))
def test_questions_written_are_read_back(
    tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch, data: Any, ids: list[str], name: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    written = [
        Question(data.draw(TEXT.filter(lambda text: bool(text.strip()))), key, data.draw(ANSWERS))
        for key in ids
    ]
    path = tmp_path_factory.mktemp("round") / name
    texts = [text for question in written for text in (question.text, question.id)]
    if "json" in name:
        write_questions(path, written)
    elif any("\r" in text or ("\t" in text and "\n" in text) for text in texts) or "\n" in written[0].text:
        return  # a line of a text could be taken for a row, or the first line shows no tab
    else:
        write_csv_questions(path, written)
    assert read_questions(path, id_col=2) == written


def test_dpr_csv_with_traps_is_read_as_stated(tmp_path: Path) -> None:
    text = (
        "who wrote it\t['Ann', \"Bob's\"]\n"
        '"a ""quoted"" question"\t"[""x"", \'y\']"\r\n'
        "\n"
        "regex\t['\\\\d+ men', '\\d']\n"
        "tuple and numbers\t(1989, 2.5)\n"
        "none\t[]\n"
        "one string\t'Ann'"
    )
    assert questions(text, tmp_path / "q.csv") == [
        Question("who wrote it", "0", ("Ann", "Bob's")),
        Question('a "quoted" question', "1", ("x", "y")),
        Question("regex", "2", ("\\d+ men", "\\d")),
        Question("tuple and numbers", "3", ("1989", "2.5")),
        Question("none", "4"),
        Question("one string", "5", ("Ann",)),
    ]


def test_answers_are_literals_and_never_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    for code in (
        f"open({str(target)!r}, 'w')",
        f"[__import__('os').mkdir({str(target)!r})]",
        "['a'] * 10**9",
        "[x for x in 'ab']",
    ):
        with pytest.raises(
            InputError, match=r"q\.csv:2: the answers .* cannot be read, expected a Python list literal"
        ):
            questions(f"q\t['a']\nr\t{code}\n", tmp_path / "q.csv")
    assert not target.exists()


NO_ANSWERS = ["[" * 3000, "['a'", "{'a': 1}", "[None]", "[True]", "7", "[1e999]", "['\\ud800']", ""]


@pytest.mark.parametrize("answers", NO_ANSWERS)
def test_answers_that_are_no_list_of_texts_are_refused(tmp_path: Path, answers: str) -> None:
    with pytest.raises(InputError, match=r"q\.csv:1: "):
        questions(f"q\t{answers}\n", tmp_path / "q.csv")


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    text = "7\t['a']\twho?\n"
    assert questions(text, tmp_path / "q.tsv", question_col=2, answers_col=1, id_col=0) == [
        Question("who?", "7", ("a",))
    ]
    assert questions(text, tmp_path / "q.tsv", question_col=2, answers_col=-1) == [Question("who?", "0")]
    with pytest.raises(InputError, match=r"q\.tsv:1: 1 columns, expected at least 2; .*answers_col=-1"):
        questions("who?\n", tmp_path / "q.tsv")


def test_json_of_every_source_is_read(tmp_path: Path) -> None:
    dpr = '{"question": "a", "answers": ["x"], "id": 5}\n{"question": "b", "answers": [], "id": null}\n'
    assert questions(dpr, tmp_path / "q.jsonl") == [Question("a", "5", ("x",)), Question("b", "1")]
    nq_open = '[{"question": "a", "answer": ["x", "y"]},\n {"question": "b", "answer": "z"}]'
    expected = [Question("a", "0", ("x", "y")), Question("b", "1", ("z",))]
    assert questions(nq_open, tmp_path / "q.json") == expected
    webquestions = '[{"qId": "w", "qText": "a", "gold": ["x"]}]'
    names = {"question_attr": "qText", "answers_attr": "gold", "id_attr": "qId"}
    assert questions(webquestions, tmp_path / "q.json", **names) == [Question("a", "w", ("x",))]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.jsonl", '{"question": 5}', "q.jsonl:1: question is the number 5"),
        ("q.jsonl", '{"question": " "}', "q.jsonl:1: empty question"),
        (
            "q.jsonl",
            '{"question": "a", "id": "1"}\n{"question": "b", "id": 1}',
            "q.jsonl:2: question id '1' is",
        ),
        ("q.jsonl", '{"question": "a", "answers": {"x": 1}}', "q.jsonl:1: answers is an object"),
        ("q.jsonl", '{"question": "a", "id": [1]}', "q.jsonl:1: id is a list"),
        ("q.jsonl", '{"question": "a"}\nx', "q.jsonl:2: not JSON"),
        ("q.jsonl", "", "q.jsonl: no rows"),
        ("q.csv", "\t['a']\n", "q.csv:1: empty question"),
    ],
)
def test_bad_questions_are_refused_by_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        questions(text, tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    qrels=st.dictionaries(
        WORDS, st.dictionaries(WORDS, st.integers(-2, 5), min_size=1, max_size=3), min_size=1, max_size=3
    ),
    name=st.sampled_from(["r.tsv", "r.txt", "r.tsv.gz"]),
)
def test_qrels_return(tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch, qrels: Any, name: str) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    path = tmp_path_factory.mktemp("round") / name
    write_qrels(path, qrels)
    assert read_qrels(path) == qrels


def test_qrels_of_beir_and_trec_are_read(tmp_path: Path) -> None:
    path = tmp_path / "qrels"
    for text in (
        "query-id\tcorpus-id\tscore\n1\td 1\t2\n2\td2\t0\n",
        "1\td 1\t2\n2\td2\t0\n2\td2\t0\n",
        "1\t0\td 1\t2\r\n\n2\t0\td2\t0.0",
    ):
        path.write_text(text)
        assert read_qrels(path) == {"1": {"d 1": 2}, "2": {"d2": 0}}
    path.write_text("1 0 d1  2\n1  Q0  d2 1\n")
    assert read_qrels(path) == {"1": {"d1": 2, "d2": 1}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 d1\n", "qrels:1: 2 columns, expected 3"),
        ("q1 Q0 d1\n", "qrels:1: the grade 'd1' is not an integer"),
        ("q\tc\ts\n1\td1\t1\n", "qrels:1: the grade 's' is not an integer; a header names the columns"),
        ("1 0 d1 1.5\n", "qrels:1: the grade '1.5' is not an integer"),
        ("1 0 d1 inf\n", "qrels:1: the grade 'inf' is not an integer"),
        ("1 0 d1 1e300\n", "qrels:1: the grade '1e300' is not an integer"),
        ("1\td1\t1\n1\td1\t2\n", "qrels:2: a second, different grade"),
        ("\td1\t1\n", "qrels:1: 3 columns, expected 3"),
        ("query-id\tcorpus-id\tscore\n", "qrels: no rows"),
    ],
)
def test_bad_qrels_are_refused_by_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "qrels").write_text(text)
    with pytest.raises(InputError) as caught:
        read_qrels(tmp_path / "qrels")
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


def test_ids_that_the_layout_cannot_carry_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'a b' is empty or holds white space"):
        write_qrels(tmp_path / "r.tsv", {"1": {"a b": 1}})
    assert not (tmp_path / "r.tsv").exists()


def test_real_sets_are_read_whole(shared_data: Path) -> None:
    assert len(read_questions(shared_data / "nq-open" / "NQ-open.dev.jsonl")) == 3610
    web = read_questions(shared_data / "webquestions" / "test.json", question_attr="qText", id_attr="qId")
    assert len(web) == 2032
    assert all(question.answers for question in web)
    assert sum(map(len, read_qrels(shared_data / "npl" / "qrels" / "test.tsv").values())) == 2083


def test_results_file_is_dprs_byte_for_byte_layout(tmp_path: Path) -> None:
    hit = Hit("wiki:1", "T\u2028", "text", 81.25, True)
    question = RetrievedQuestion("who?", "0", ("a",), [hit, Hit("2", "", "x", -1.0)])
    write_results(tmp_path / "r.json", [question] * 2)
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
        ("1 Q0 a 1 0.5 x\n1 Q0 b 2 1e400 x\n", "run:2: the score is the string '1e400', expected a finite"),
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
def test_ids_that_no_run_can_carry_are_refused(tmp_path: Path, question: str, passage: str, tag: str) -> None:
    with pytest.raises(InputError, match="white space"):
        write_trec_run(tmp_path / "run", {question: [(passage, 1.0)]}, tag)
    assert not (tmp_path / "run").exists()
