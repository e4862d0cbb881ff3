"""Rows in memory, data sets of ``datasets`` and names of its hub are read as a file with the same rows."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.data.training_data import TrainingData
from dpr.formats.stored_training_set import TrainingSet
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
        ("c", "row 3: of type str, expected a dictionary"),
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


def test_a_name_of_the_hub_is_fetched_by_datasets_and_offline_gives_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with pytest.raises(
        ConfigError, match="is not the name of a data set on the hub; expected hf://user/name"
    ):
        opened("hf://user", tmp_path)


class Mine(TrainingData):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, row: int) -> Any:
        raise IndexError(row)


def test_sets_are_given_alone_or_in_a_list_with_options_or_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    file, rows, mine = tmp_path / "nq.jsonl", ROWS["columns"], Mine()
    file.write_text(json.dumps(rows[0]))
    assert [source.name for source in opened_sets(str(file), "train")] == ["nq"]
    assert [source.name for source in opened_sets(rows, "train")] == ["train"]
    names = [source.name for source in opened_sets([rows, file, rows, mine], "train")]
    assert names == ["train", "nq", "train_2", "data"]
    splits = datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS["columns"]))
    assert [len(source) for source in opened_sets([splits, splits], "train")] == [len(rows)] * 2
    with pytest.raises(InputError, match="row 2: of type str, expected a dictionary"):
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
    rows = [
        {"question": "who is it?", "positive": "p 1", "negative": ["n"]},
        {"question": "b", "positive": "q"},
    ]
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
def test_what_is_wrong_with_all_rows_names_no_file_of_the_cache(
    rows: list[dict[str, Any]], found: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        opened(datasets.Dataset.from_list(rows), tmp_path)
    assert found in str(error.value) and str(tmp_path) not in str(error.value)
