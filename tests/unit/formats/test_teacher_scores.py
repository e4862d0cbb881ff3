"""A teacher's scores are read from every format that has them, kept by the cache and written again."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpr.core.errors import InputError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.text_store import open_store
from dpr.formats.training_files.dpr import sample_from_json, sample_to_json
from dpr.formats.training_files.registry import WRITERS, read_rows
from dpr.formats.training_files.rows import ReadOptions
from dpr.formats.training_sets import open_training_set

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


def opened(path: Path) -> TrainingSet:
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
def test_scores_are_read_and_kept_by_the_cache(
    tmp_path: Path, record: dict[str, Any], expected: Scores
) -> None:
    for _ in range(2):
        assert scores_of(opened(one_line(tmp_path / "train.jsonl", record))[0]) == expected


def test_dpr_s_own_score_is_no_teacher_s(tmp_path: Path) -> None:
    record = {
        "question": "q",
        "positive_ctxs": [{"text": "p", "score": 1000}],
        "hard_negative_ctxs": [{"text": "n", "score": "no number"}],
    }
    sample = opened(one_line(tmp_path / "train.jsonl", record))[0]
    assert scores_of(sample) == [[None], [None], []]
    assert sample.positives[0].has_score
    path = tmp_path / "dpr.parquet"
    pq.write_table(
        pa.Table.from_pylist([{"question": "q", "positive_ctxs": [{"text": "p", "score": 1000.0}]}]), path
    )
    assert scores_of(opened(path)[0]) == [[None], [], []]


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
            prints.add(opened(one_line(path, records, text)).fingerprint)
    assert len(prints) == 6


BAD = ["true", '"0.5"', "NaN", "1e999", "1e39", "[1]", "{}"]


@pytest.mark.parametrize(
    ("record", "old", "bad"),
    [*((DPR, "7.25", bad) for bad in BAD), (FLAG_EMBEDDING, "-2", "true"), (TEVATRON, "5.5", "[1]")],
)
def test_a_score_that_is_none_is_refused_with_file_and_line(
    tmp_path: Path, record: dict[str, Any], old: str, bad: str
) -> None:
    text = json.dumps(record)
    assert text.count(old) == 1
    path = one_line(tmp_path / "train.jsonl", {}, f"{text}\n{text.replace(old, bad)}")
    with pytest.raises(InputError, match=r"train\.jsonl:2: .*(teacher's score|not a JSON number|too large)"):
        opened(path)


def test_a_score_that_is_none_is_refused_in_columns_and_lists_of_another_length(tmp_path: Path) -> None:
    pq.write_table(
        pa.Table.from_pylist([{**TEXTS, "label": [3.5, float("nan"), 1.0]}]), tmp_path / "st.parquet"
    )
    with pytest.raises(
        InputError, match=r"st\.parquet:1: label\[1\] is the number nan, expected a teacher's score"
    ):
        opened(tmp_path / "st.parquet")
    path = one_line(tmp_path / "flag.jsonl", {**FLAG_EMBEDDING, "neg_scores": [1]})
    with pytest.raises(InputError, match=r"flag\.jsonl:1: neg_scores has 1 values for 2 passages"):
        opened(path)


def test_a_number_beside_negatives_that_is_no_list_of_scores_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for value in (0.3, [1, 2]):
        caplog.clear()
        sample = opened(one_line(tmp_path / "train.jsonl", {**TEXTS, "label": value}))[0]
        assert scores_of(sample) == [[None], [None, None], []]
        assert "the key 'label' is not read; a teacher's scores are a list" in caplog.text
