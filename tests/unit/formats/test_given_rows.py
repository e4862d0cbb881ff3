"""Rows in memory and of data sets are read as those of a file; a teacher's scores are read from every format that has them."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage, TrainingSample
from dpr.data.training_data import TrainingData
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.text_store import open_store
from dpr.formats.training_files.dpr import sample_from_json, sample_to_json
from dpr.formats.training_files.registry import WRITERS, read_rows
from dpr.formats.training_files.rows import ReadOptions
from dpr.formats.training_sets import open_training_set
from dpr.training.data_sets import opened_sets

PARAGRAPH = {"context": "p", "qas": [{"question": "a", "id": "1", "answers": []}]}
ROWS: dict[str, list[dict[str, Any]]] = {
    "columns": [
        {"query": "a", "positive": "p", "negative_1": "n", "negative_2": "m"},
        {"query": "b", "positive": "q"},
    ],
    "labels": [{"query": "a", "passage": "p", "label": 1}, {"query": "a", "passage": "n", "label": 0}],
    "squad": [{"data": [{"title": "T", "paragraphs": [PARAGRAPH]}]}],
}


def opened(data: Any, tmp_path: Path, **options: Any) -> TrainingSet:
    return open_training_set(data, name="t", cache_dir=tmp_path / "cache", **options)


def same(first: TrainingSet, second: TrainingSet) -> bool:
    return [first[row] for row in range(len(first))] == [
        second[row] for row in range(len(second))
    ] and first.counts == second.counts


@pytest.mark.parametrize("layout", ROWS)
def test_rows_in_memory_are_read_as_those_of_a_file(tmp_path: Path, layout: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[layout]))
    in_memory, again = opened(ROWS[layout], tmp_path), opened(ROWS[layout], tmp_path)
    assert same(in_memory, opened(file, tmp_path))
    assert in_memory.fingerprint == again.fingerprint == opened(file, tmp_path).fingerprint
    assert len(list((tmp_path / "cache").glob("training-*"))) == 1
    assert not list((tmp_path / "cache").glob(".tmp-*"))
    changed = json.loads(json.dumps(ROWS[layout]).replace('"a"', '"other"'))
    assert opened(changed, tmp_path).fingerprint != in_memory.fingerprint


def test_data_sets_of_the_package_datasets_are_read(tmp_path: Path) -> None:
    expected = opened(ROWS["columns"], tmp_path)
    rows = [{"query": "a", "positive": "p", "negative_1": "n", "negative_2": "m"}]
    data = datasets.Dataset.from_list(
        [*rows, {"query": "b", "positive": "q", "negative_1": None, "negative_2": None}]
    )
    assert same(opened(data, tmp_path), expected)
    assert same(opened(data.with_format("numpy"), tmp_path), expected)
    splits = datasets.DatasetDict(train=data, other=data.select([1]))
    assert same(opened(splits, tmp_path), expected)
    assert len(opened(splits, tmp_path, split="other")) == 1
    with pytest.raises(InputError, match="no split 'dev', expected one of train, other"):
        opened(splits, tmp_path, split="dev")
    with pytest.raises(ConfigError, match="has the splits a, b; choose with split=NAME"):
        opened(datasets.DatasetDict(a=data, b=data), tmp_path)
    named = datasets.Dataset.from_list([{"frage": "a", "text": "p"}])
    assert opened(named, tmp_path, columns={"question": "frage", "positive": "text"})[0].question == "a"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "c"}, "row 3: no positive among the keys query"),
        ({"query": "c", "positive": 7}, "row 3: positive is the number 7, expected a string"),
        ({"query": "c", "positive": "p", "score": float("nan")}, "row 3: NaN is not a JSON number"),
        ({"query": "c", "positive": {"p"}}, "row 3: cannot be read ("),
        (("c", None), "row 3: ('c', None) of type tuple, expected a dictionary"),
    ],
)
def test_what_is_wrong_in_a_row_names_the_row(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        opened([*ROWS["columns"], row], tmp_path)
    assert str(caught.value).startswith(message)
    assert not list((tmp_path / "cache").glob(".tmp-*"))


def test_keys_that_are_not_read_name_the_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        opened([{"query": "a", "pos": ["p"], "querry": ["n"]}], tmp_path)
        assert caplog.messages.pop().startswith("rows in memory, row 1: the key 'querry' is not read")


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    rows = [
        {"query": "a", "passage": "p", "label": np.int64(1)},
        {"query": "a", "passage": "n", "label": np.float32(0)},
    ]
    assert same(opened(rows, tmp_path), opened(ROWS["labels"], tmp_path))


@pytest.mark.parametrize("data", [3, {"question": "q"}, b"x", None])
def test_another_type_is_one_sentence(tmp_path: Path, data: Any) -> None:
    with pytest.raises(ConfigError, match=f"training data of type {type(data).__name__}, expected a path"):
        opened(data, tmp_path)
    with pytest.raises(InputError, match="no rows"):
        opened(iter([]), tmp_path)
    (tmp_path / "x.jsonl").write_text(json.dumps(ROWS["columns"][0]))
    with pytest.raises(ConfigError, match=r"split=dev was given, but .* is a file"):
        opened(tmp_path / "x.jsonl", tmp_path, split="dev")


def test_names_of_the_hub_are_fetched_by_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(name: str, configuration: str | None) -> Any:
        if name == "user/absent":
            raise ConnectionError("Couldn't reach the Hub\nTraceback ...")
        return datasets.DatasetDict(
            train=datasets.Dataset.from_list([{"query": configuration or "none", "positive": "p"}])
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert opened("hf://user/data", tmp_path)[0].question == "none"
    assert opened("hf://user/data/pair", tmp_path, split="train")[0].question == "pair"
    with pytest.raises(
        InputError,
        match=r"^hf://user/absent: could not be downloaded \(Couldn't reach the Hub\); check the network[^\n]*$",
    ):
        opened("hf://user/absent", tmp_path)
    with pytest.raises(ConfigError, match="not the name of a data set on the hub; expected hf://user/name"):
        opened("hf://user", tmp_path)


class Mine(TrainingData):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, row: int) -> Any:
        raise IndexError(row)


def test_sets_are_given_alone_or_listed_with_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    file, rows, mine = tmp_path / "nq.jsonl", ROWS["columns"], Mine()
    file.write_text(json.dumps(rows[0]))
    assert [source.name for source in opened_sets(str(file), "train")] == ["nq"]
    assert [source.name for source in opened_sets(rows, "train")] == ["train"]
    names = [source.name for source in opened_sets([rows, file, rows, mine], "train")]
    assert names == ["train", "nq", "train_2", "data"]
    splits = datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS["columns"]))
    assert [len(source) for source in opened_sets([splits, splits], "train")] == [len(rows)] * 2
    with pytest.raises(InputError, match="row 2: 'text' of type str, expected a dictionary"):
        opened_sets([rows[0], "text"], "train")
    options = object()
    assert opened_sets([(mine, options), (rows, options)], "dev")[0] == (mine, options)
    assert opened_sets((mine, options), "dev") == [(mine, options)]
    assert opened_sets((), "dev") == opened_sets([], "dev") == []
    with pytest.raises(ConfigError, match="training data of type int"):
        opened_sets([7], "train")
    with pytest.raises(ConfigError, match="a data set of type SimpleNamespace has no name"):
        opened_sets([SimpleNamespace(fingerprint="x")], "train")


def test_pairs_frames_and_examples_are_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas

    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    rows: list[dict[str, Any]] = [{"question": "who is it?", "positive": "p 1", "negative": ["n"]}]
    rows.append({"question": "b", "positive": "q"})
    expected = [opened(rows, tmp_path)[row] for row in range(2)]
    texts = [("who is it?", "p 1", "n"), ["b", "q"]]
    frame = pandas.DataFrame({"question": ["who is it?", "b"], "positive": ["p 1", "q"]})
    for given in (texts, tuple(texts), [SimpleNamespace(texts=list(each), label=0) for each in texts]):
        ((source),) = opened_sets(given, "train")
        assert [source[row] for row in range(len(source))] == expected
    (source,) = opened_sets(frame, "train")
    assert [source[row].positives for row in range(2)] == [sample.positives for sample in expected]
    named = opened_sets({"one": frame, "two": texts}, "train")
    assert [source.name for source in named] == ["one", "two"] and named[1][0] == expected[0]

    # two names of files are no question and passage
    with pytest.raises(InputError, match=r"missing.jsonl: no such file"):
        opened_sets([("missing.jsonl", "other.jsonl")], "train")


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([], "the rows given: holds no rows"),
        ([{"question": "q", "positive": None}], "no rows can be used: of 1"),
    ],
)
def test_what_is_wrong_names_no_cached_file(rows: list[dict[str, Any]], found: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        opened(datasets.Dataset.from_list(rows), tmp_path)
    assert found in str(error.value) and str(tmp_path) not in str(error.value)


Scores = list[list[float | None]]
TEXTS = {"query": "q", "positive": "p", "negative_1": "n", "negative_2": "m"}


def scores_of(sample: TrainingSample) -> Scores:
    return [
        [passage.teacher_score for passage in listed]
        for listed in (sample.positives, sample.hard_negatives, sample.other_negatives)
    ]


def one_line(path: Path, record: dict[str, Any], text: str = "") -> Path:
    path.write_text((text or json.dumps(record)) + "\n")
    return path


def opened_file(path: Path) -> TrainingSet:
    return open_training_set(path, name="t", cache_dir=path.parent / "cache")


DPR = {
    "question": "q",
    "positive_ctxs": [{"text": "p", "score": 1000, "teacher_score": 7.25}],
    "hard_negative_ctxs": [
        {"text": "n", "score": 31.5, "cross_encoder_score": 0.125},
        {"text": "m", "score": 30},
    ],
    "negative_ctxs": [
        {"text": "o", "teacher_score": -3, "cross_encoder_score": 0.5},
        {"text": "k", "teacher_score": None},
    ],
}
FLAG_EMBEDDING = {"query": "q", "pos": ["p"], "neg": ["n", "m"]}
FLAG_EMBEDDING |= {"pos_scores": [0.5], "neg_scores": [-2, None]}
TEVATRON = {
    "query": "q",
    "positive_passages": [{"docid": "1", "text": "p", "score": 5.5}],
    "negative_passages": [{"docid": "2", "text": "n", "score": 2}, {"docid": "3", "text": "m"}],
}
READ = [
    ("dpr", DPR, [[7.25], [0.125, None], [-3.0, None]]),
    ("flagembedding", FLAG_EMBEDDING, [[0.5], [-2.0, None], []]),
    ("tevatron", TEVATRON, [[5.5], [2.0, None], []]),
    ("sentence-transformers, scores", {**TEXTS, "scores": [1, 2, None]}, [[1.0], [2.0, None], []]),
    (
        "objects in columns",
        {"query": "q", "positive": {"text": "p", "teacher_score": 2}, "negative": "n"},
        [[2.0], [None], []],
    ),
]


@pytest.mark.parametrize(("record", "expected"), [case[1:] for case in READ], ids=[case[0] for case in READ])
def test_scores_are_read_and_cached(tmp_path: Path, record: dict[str, Any], expected: Scores) -> None:
    for _ in range(2):
        assert scores_of(opened_file(one_line(tmp_path / "train.jsonl", record))[0]) == expected


def test_dpr_s_own_score_is_no_teacher_s(tmp_path: Path) -> None:
    record = {
        "question": "q",
        "positive_ctxs": [{"text": "p", "score": 1000}],
        "hard_negative_ctxs": [{"text": "n", "score": "no number"}],
    }
    sample = opened_file(one_line(tmp_path / "train.jsonl", record))[0]
    assert scores_of(sample) == [[None], [None], []]
    assert sample.positives[0].has_score
    path = tmp_path / "dpr.parquet"
    pq.write_table(
        pa.Table.from_pylist([{"question": "q", "positive_ctxs": [{"text": "p", "score": 1000.0}]}]), path
    )
    assert scores_of(opened_file(path)[0]) == [[None], [], []]


@pytest.mark.parametrize("name", ["dpr", "tevatron", "flagembedding"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    def passage(text: str, score: float | None) -> Passage:
        return Passage(text, id=f"id {text}", teacher_score=score)

    samples = [
        TrainingSample(
            "q", (passage("p", 0.1),), (passage("n", -1e-30), passage("m", None), passage("o", 3e38))
        ),
        TrainingSample("r", (passage("p", None),), (passage("n", None),)),
    ]
    WRITERS[name](tmp_path / "out.jsonl", samples, None)
    options = ReadOptions(partial(open_store, cache_dir=tmp_path / "cache"))
    again = [row.sample for row in read_rows(tmp_path / "out.jsonl", options)]
    assert [scores_of(sample) for sample in again if sample] == [scores_of(sample) for sample in samples]
    assert "score" not in (tmp_path / "out.jsonl").read_text().splitlines()[1]


def test_records_without_scores_are_what_they_were() -> None:
    sample = TrainingSample("q", (Passage("p", "t", "1", has_score=True),), (Passage("n"),))
    assert "teacher" not in json.dumps(sample_to_json(sample)) + repr(sample)
    scored = replace(sample, positives=(replace(sample.positives[0], teacher_score=1.0),))
    assert scored == sample  # the score belongs to the pair, not to the passage
    assert scores_of(sample_from_json(sample_to_json(scored))) == [[1.0], [None], []]


def test_the_fingerprint_of_a_set_changes_with_its_scores(tmp_path: Path) -> None:
    prints = set()
    for name, records in {"dpr": DPR, "flag": FLAG_EMBEDDING, "st": {**TEXTS, "label": [1, 2, 3]}}.items():
        path = tmp_path / f"{name}.jsonl"
        for score in ("1", "2"):
            text = json.dumps(records).replace("0.5", score).replace("[1, 2", f"[{score}, 2")
            prints.add(opened_file(one_line(path, records, text)).fingerprint)
    assert len(prints) == 6


BAD = ["true", '"0.5"', "NaN", "1e999", "1e39", "[1]", "{}"]


@pytest.mark.parametrize(
    ("record", "old", "bad"),
    [*((DPR, "7.25", bad) for bad in BAD), (FLAG_EMBEDDING, "-2", "true"), (TEVATRON, "5.5", "[1]")],
)
def test_bad_scores_are_refused_by_line(tmp_path: Path, record: dict[str, Any], old: str, bad: str) -> None:
    text = json.dumps(record)
    assert text.count(old) == 1
    path = one_line(tmp_path / "train.jsonl", {}, f"{text}\n{text.replace(old, bad)}")
    with pytest.raises(InputError, match=r"train\.jsonl:2: .*(teacher's score|not a JSON number|too large)"):
        opened_file(path)


def test_a_score_that_is_none_is_refused_in_columns_and_lists_of_another_length(tmp_path: Path) -> None:
    pq.write_table(
        pa.Table.from_pylist([{**TEXTS, "label": [3.5, float("nan"), 1.0]}]), tmp_path / "st.parquet"
    )
    with pytest.raises(
        InputError, match=r"st\.parquet:1: label\[1\] is the number nan, expected a teacher's score"
    ):
        opened_file(tmp_path / "st.parquet")
    path = one_line(tmp_path / "flag.jsonl", {**FLAG_EMBEDDING, "neg_scores": [1]})
    with pytest.raises(InputError, match=r"flag\.jsonl:1: neg_scores has 1 values for 2 passages"):
        opened_file(path)


def test_numbers_that_are_no_scores_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for value in (0.3, [1, 2]):
        caplog.clear()
        sample = opened_file(one_line(tmp_path / "train.jsonl", {**TEXTS, "label": value}))[0]
        assert scores_of(sample) == [[None], [None, None], []]
        assert "the key 'label' is not read; a teacher's scores are a list" in caplog.text
