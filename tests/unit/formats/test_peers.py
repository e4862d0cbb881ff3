"""Files that other tools write are read as those tools read them, or the message names their keys."""

import bz2
import gzip
import io
import json
import lzma
import shlex
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpr.cli.main import main
from dpr.core.errors import InputError
from dpr.core.records import Passage, Question, TrainingSample
from dpr.formats.corpora import check_unique_ids, read_passages
from dpr.formats.question_sets import read_questions
from dpr.formats.text_store import open_store
from dpr.formats.training_sets import open_training_set


def written(path: Path, *records: dict[str, Any]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(records)), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


CORPORA = {
    "BEIR": ({"_id": "1", "title": "T", "text": "x"}, Passage("x", "T", "1")),
    "Tevatron": ({"docid": "1", "title": "T", "text": "x"}, Passage("x", "T", "1")),
    "Tevatron 2": ({"docid": "1", "document_text": "x"}, Passage("x", "", "1")),
    "Pyserini": ({"id": "1", "contents": "x"}, Passage("x", "", "1")),
    "MS MARCO 2": ({"pid": "1", "passage": "x", "spans": "(0,1)", "docid": "d"}, Passage("x", "", "1")),
    "MS MARCO 2.1": ({"docid": "1", "url": "u", "title": "T", "segment": "x"}, Passage("x", "T", "1")),
}


@pytest.mark.parametrize("peer", CORPORA)
def test_a_corpus_has_the_same_passages_in_every_command(tmp_path: Path, peer: str) -> None:
    record, expected = CORPORA[peer]
    for name in ("c.jsonl", "c.json", "c.parquet"):
        path = written(tmp_path / name, record)
        assert list(read_passages(path)) == [expected]
        assert check_unique_ids(path) == 1
    assert open_store(path, cache_dir=tmp_path / "cache").passage("1") == expected


QUESTIONS = {
    "BEIR": ({"_id": "7", "text": "who?"}, Question("who?", "7", ())),
    "Tevatron": (
        {"query_id": "7", "query": "who?", "answers": ["a", "b"]},
        Question("who?", "7", ("a", "b")),
    ),
    "Tevatron 2": ({"query_id": "7", "query_text": "who?", "answer": ["a"]}, Question("who?", "7", ("a",))),
    "MS MARCO": ({"query_id": 7, "query": "who?", "query_type": "PERSON"}, Question("who?", "7", ())),
    "mteb": ({"id": "7", "text": "who?"}, Question("who?", "7", ())),
}


@pytest.mark.parametrize("peer", QUESTIONS)
def test_questions_have_their_ids_texts_and_answers(tmp_path: Path, peer: str) -> None:
    record, expected = QUESTIONS[peer]
    for name in ("q.jsonl", "q.json", "q.parquet"):
        assert read_questions(written(tmp_path / name, record)) == [expected]


FLAG = {"query": "q", "pos": ["p"], "neg": ["n", "m"], "pos_id": ["1"], "neg_id": ["2", "3"]}
FLAG |= {"pos_scores": [3.0], "neg_scores": [1.0, 0.5]}
FLAG_SAMPLE = TrainingSample(
    "q",
    (Passage("p", teacher_score=3.0),),
    (Passage("n", teacher_score=1.0), Passage("m", teacher_score=0.5)),
)
DPR = {"question": "q", "answers": ["a"]}
DPR |= {"positive_ctxs": [{"title": "T", "text": "p"}], "negative_ctxs": [{"title": "", "text": "o"}]}
TRAINING = {
    "FlagEmbedding": (FLAG, FLAG_SAMPLE),
    "DPR": (DPR, TrainingSample("q", (Passage("p", "T"),), (), (Passage("o"),), ("a",))),
    "Tevatron": (
        {
            "query_id": "5",
            "query": "q",
            "positive_passages": [{"docid": "1", "title": "T", "text": "p", "score": 2.0}],
        },
        TrainingSample("q", (Passage("p", "T", "1", teacher_score=2.0),)),
    ),
    "nomic": (
        {"query": "q", "document": "p", "negatives": ["n"], "source": "s"},
        TrainingSample("q", (Passage("p"),), (Passage("n"),)),
    ),
    "NeMo": (
        {"question": "q", "pos_doc": ["p"], "neg_doc": ["n"]},
        TrainingSample("q", (Passage("p"),), (Passage("n"),)),
    ),
    "sentence-transformers": (
        {"anchor": "q", "positive": "p", "negative_1": "n", "negative_2": "m", "label": [3.0, 1.0, 0.5]},
        FLAG_SAMPLE,
    ),
}


@pytest.mark.parametrize("peer", TRAINING)
def test_a_layout_is_read_alike_from_json_parquet_data_sets_and_rows(tmp_path: Path, peer: str) -> None:
    record, expected = TRAINING[peer]
    folder = tmp_path / "saved"
    datasets.Dataset.from_list([record]).save_to_disk(str(folder))
    files = [written(tmp_path / f"t.{kind}", record) for kind in ("jsonl", "json", "parquet")]
    for data in (*files, folder, datasets.Dataset.from_list([record]), [record]):
        opened = open_training_set(data, name="t", cache_dir=tmp_path / "cache")
        assert [opened[0]] == [expected], data


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_prompts_of_rows_stand_before_their_questions_and_are_told(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        FLAG | {"query": f"q{number}", "prompt": "Find it: ", "type": kind}
        for number, kind in enumerate(["normal", "symmetric_sts"])
    ]
    path = written(tmp_path / name, *rows, FLAG | {"prompt": None, "type": None})
    opened = open_training_set(path, name="t", cache_dir=tmp_path / "cache")
    assert [opened[row].question for row in range(3)] == ["Find it: q0", "Find it: q1", "q"]
    told = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    (warning,) = told
    assert "a row's prompt becomes the beginning of its question" in warning
    assert main(["prepare", str(path), f"out={tmp_path / 'out.jsonl'}"]) == 0
    assert [json.loads(line)["question"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [
        "Find it: q0",
        "Find it: q1",
        "q",
    ]
    capsys.readouterr()


def test_an_instruction_that_is_not_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "t.jsonl", {"query": "q", "positive": "p", "instruction": "Find it: "})
    open_training_set(path, name="t", cache_dir=tmp_path / "cache")
    assert "the key 'instruction' is not read" in caplog.text


KEYLESS = [
    (read_passages, {"name": "1", "text": "x"}, "no id among the keys name, text, expected one of _id, id,"),
    (
        read_passages,
        {"docid": "1", "words": "x"},
        "no text among the keys docid, words, expected one of text,",
    ),
    (
        read_questions,
        {"id": "1", "say": "?"},
        "no question among the keys id, say, expected one of question,",
    ),
]


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
@pytest.mark.parametrize(("read", "record", "message"), KEYLESS)
def test_a_record_without_a_known_name_shows_its_keys_and_those_that_are_known(
    tmp_path: Path, read: Any, record: dict[str, Any], message: str, name: str
) -> None:
    path = written(tmp_path / name, record)
    with pytest.raises(InputError) as caught:
        list(read(path))
    assert str(caught.value).startswith(f"{path}:1: {message}")


@pytest.mark.parametrize(
    "record",
    [
        {"query": "q", "pos": ["p"], "positive_passages": [{"text": "p"}]},
        {"question": "q", "positive_ctxs": [{"text": "p"}], "query": "q", "pos": ["p"]},
        {"sentence1": "q", "sentence2": "p"},
    ],
)
def test_ways_out_work(tmp_path: Path, record: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "t.jsonl", record)
    with pytest.raises(InputError) as caught:
        open_training_set(path, name="t", cache_dir=tmp_path / "cache")
    options = str(caught.value).partition("dpr prepare FILE ")[2]
    options = options.replace("train.jsonl", str(tmp_path / "out.jsonl"))
    options = options.replace("question=...", "question=sentence1")
    options = options.replace("positive=...", "positive=sentence2")
    assert main(["prepare", str(path), *shlex.split(options)]) == 0
    capsys.readouterr()


PRINTED = {
    "numpy": str(np.array(["it's", "b c"], dtype=object)),
    "numpy, wrapped": str(np.array(["it's", "b c", "x" * 40, "y" * 40])),
    "Python": repr(["it's", "b c"]),
    "JSON": json.dumps(["it's", "b c"]),
}


@pytest.mark.parametrize("tool", PRINTED)
def test_a_printed_list_of_answers_is_that_list(tmp_path: Path, tool: str) -> None:
    text = PRINTED[tool]
    expected = ("it's", "b c", "x" * 40, "y" * 40) if "wrapped" in tool else ("it's", "b c")
    pd.DataFrame({"q": ["who?"], "a": [text]}).to_csv(tmp_path / "q.csv", sep="\t", index=False, header=False)
    assert read_questions(tmp_path / "q.csv")[0].answers == expected
    for name in ("q.jsonl", "q.parquet"):
        path = written(tmp_path / name, {"question": "who?", "answers": text})
        assert read_questions(path)[0].answers == expected
    row = open_training_set([DPR | {"answers": text}], name="t", cache_dir=tmp_path / "cache")[0]
    assert row.answers == expected


BROKEN = ["['a''b']", "['a' nan]", "array(['a'], dtype=object)", str(np.array(["a"] * 2000)), "['a' ... 'b']"]


@pytest.mark.parametrize("text", BROKEN)
def test_a_printed_list_that_is_not_whole_is_refused(tmp_path: Path, text: str) -> None:
    for name in ("q.jsonl", "q.parquet"):
        with pytest.raises(InputError, match=r":1: the answers .* cannot be read"):
            read_questions(written(tmp_path / name, {"question": "who?", "answers": text}))
    (tmp_path / "q.csv").write_text(f"who?\t{text}\n")
    with pytest.raises(InputError, match=r":1: the answers .* cannot be read"):
        read_questions(tmp_path / "q.csv")


def test_a_table_that_pandas_wrote_keeps_lists_of_passages_apart(tmp_path: Path) -> None:
    frame = pd.DataFrame({"query": ["q"], "pos": [["p"]], "neg": [np.array(["n", "m"], dtype=object)]})
    frame.to_csv(tmp_path / "t.tsv", sep="\t", index=False)
    row = open_training_set(tmp_path / "t.tsv", name="t", cache_dir=tmp_path / "cache")[0]
    assert row == TrainingSample("q", (Passage("p"),), (Passage("n"), Passage("m")))


LINE = b'{"_id": "1", "text": "x"}\n'


def parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"_id": ["1"], "text": ["x"]}), out)
    return out.getvalue()


CONTENTS = {
    "a zip archive": b"PK\x03\x04" + bytes(30),
    "a tar archive": gzip.compress(b"c.jsonl".ljust(257, b"\0") + b"ustar\x0000".ljust(255, b"\0")),
    "compressed by bzip2": bz2.compress(LINE),
    "compressed by xz": lzma.compress(LINE),
    "compressed by zstd": b"\x28\xb5\x2f\xfd\x04\x00",
    "compressed twice by gzip": gzip.compress(gzip.compress(LINE)),
    "a Parquet file": parquet(),
    "a PDF": b"%PDF-1.7\n%\xe2\xe3",
    "in UTF-16": LINE.decode().encode("utf-16"),
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
}


@pytest.mark.parametrize("what", CONTENTS)
def test_content_of_another_kind_than_the_name_is_called_by_its_own(tmp_path: Path, what: str) -> None:
    for name, read in (("c.jsonl", read_passages), ("c.tsv", read_passages), ("q.csv", read_questions)):
        (tmp_path / name).write_bytes(CONTENTS[what])
        with pytest.raises(InputError) as caught:
            list(read(tmp_path / name))
        assert str(caught.value).startswith(f"{tmp_path / name}: is {what}")
