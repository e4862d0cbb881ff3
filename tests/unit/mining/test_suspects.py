"""``suspects=``: labels that BM25 and a model both contradict are listed, dropped or relabelled."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.cli.main import main
from dpr.core.records import Passage, TrainingSample
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from dpr.models.biencoder import BiEncoder
from tests.helpers.tiny import WORDS, static_folder, tiny_model
from tests.unit.mining.conftest import bm25_of, records

WRONG, ANSWERED = (3, 11, 17), (5, 20)
"""Rows whose positive is another row's, and rows whose hard negative holds the question's words better than
the positive does."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that counts words, and data in which some labels are wrong."""
    tiny_model(static_folder(tmp_path / "start", width=64), pooling="idf", normalize=True, shared=True).save(
        tmp_path / "model"
    )
    rng = random.Random(0)
    texts = [" ".join(rng.sample(WORDS, 12)) for _ in range(30)]
    questions = [" ".join(rng.sample(text.split(), 6)) for text in texts]
    samples = []
    for row, question in enumerate(questions):
        right = texts[WRONG[(WRONG.index(row) + 1) % len(WRONG)]] if row in WRONG else texts[row]
        hard = [
            texts[(row + 7) % 30],
            " ".join([*question.split(), question]) if row in ANSWERED else " ".join(rng.sample(WORDS, 9)),
        ]
        samples.append(TrainingSample(question, (Passage(right),), tuple(map(Passage, hard))))
    write_training_set(tmp_path / "train.jsonl", samples)
    monkeypatch.chdir(tmp_path)
    return tmp_path


LINE = ["check-data", "train.jsonl", "model_file=model", "suspects=suspects.jsonl", "device=cpu"]


def expected(rows: list[dict[str, Any]]) -> list[tuple[float, str, int]]:
    """The definition, over every score of both sides."""
    lists = ("positive_ctxs", "hard_negative_ctxs")
    texts = list(dict.fromkeys(one["text"] for row in rows for key in lists for one in row[key]))
    passages = [Passage(text, id=str(number)) for number, text in enumerate(texts)]
    model, words = BiEncoder.load("model"), bm25_of(passages)
    asked = [row["question"] for row in rows]
    sides = [
        np.asarray(model.encode_questions(asked)) @ np.asarray(model.encode_passages(passages)).T,
        np.stack([words._scores(question) for question in asked]),
    ]
    found = []
    for number, row in enumerate(rows):
        (right,), wrong = ([texts.index(one["text"]) for one in row[key]] for key in lists)
        score = [max(side[number, right], 0) for side in sides]
        best = [np.delete(side[number], right).max() for side in sides]
        found.append((min(1 - own / top for own, top in zip(score, best, strict=True)), "positive", number))
        for other in wrong:
            rival = [side[number, other] for side in sides]
            doubt = min(1 - own / top if top > 0 else 0 for own, top in zip(score, rival, strict=True))
            found.append((doubt, "negative", number))
    return sorted(entry for entry in found if entry[0] > 0)[::-1]


def test_the_list_is_what_the_definition_says_and_begins_with_wrong_labels(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(LINE) == 0
    printed, found = capsys.readouterr().out, records(Path("suspects.jsonl"))
    rows = records(folder / "train.jsonl")
    wanted = expected(rows)
    assert [(row["label"], row["row"]) for row in found] == [(label, row) for _, label, row in wanted]
    assert np.allclose([record["doubt"] for record in found], [doubt for doubt, *_ in wanted], atol=2e-4)
    assert {record["row"] for record in found if record["label"] == "positive"} >= set(WRONG)
    assert {record["row"] for record in found if record["label"] == "negative"} >= set(ANSWERED)
    for record in found:
        if record["label"] == "positive" and record["row"] in WRONG:
            assert set(record["instead"]["text"].split()) >= set(record["question"].split())
    assert f"{sum(record['label'] == 'positive' for record in found)} positives" in printed
    assert "dpr prepare train.jsonl out=FILE suspects=suspects.jsonl" in printed


def test_an_edited_list_is_not_replaced(folder: Path) -> None:
    assert main(LINE) == 0
    whole = Path("suspects.jsonl").read_bytes()
    kept = whole.partition(b"\n")[2]
    Path("suspects.jsonl").write_bytes(kept)
    assert main(LINE) != 0 and Path("suspects.jsonl").read_bytes() == kept
    assert main([*LINE, "overwrite=true"]) == 0 and Path("suspects.jsonl").read_bytes() == whole


def test_suspects_are_dropped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(LINE) == 0
    chosen = [
        one
        for one in records(Path("suspects.jsonl"))
        if one["row"] in (WRONG if one["label"] == "positive" else ANSWERED)
    ]
    chosen = [
        one
        for one in chosen
        if one["label"] == "positive" or one["question"].split()[0] == one["passage"]["text"].split()[0]
    ]
    assert len(chosen) == 5
    Path("checked.jsonl").write_text("".join(json.dumps(record) + "\n" for record in chosen))
    before = open_training_set("train.jsonl", name="train")
    assert main(["prepare", "train.jsonl", "out=dropped.jsonl", "suspects=checked.jsonl"]) == 0
    dropped = open_training_set("dropped.jsonl", name="train")
    assert [sample.question for sample in dropped] == [
        sample.question for row, sample in enumerate(before) if row not in WRONG
    ]
    assert [len(sample.hard_negatives) for sample in dropped] == [
        1 if row in ANSWERED else 2 for row in range(30) if row not in WRONG
    ]

    capsys.readouterr()
    assert main(["prepare", "train.jsonl", "out=dropped.jsonl", "suspects=checked.jsonl"]) == 0
    assert "already exists" in capsys.readouterr().out
    Path("checked.jsonl").write_text(json.dumps(chosen[0]) + "\n")
    assert main(["prepare", "train.jsonl", "out=dropped.jsonl", "suspects=checked.jsonl"]) != 0, (
        "of another list"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"label": "positive", "question": "?"}\n', "checked.jsonl:1: not a suspect: 'passage'"),
        (
            '{"label": "right", "question": "?", "passage": {"text": "a"}}\n',
            "not a suspect: the label 'right'",
        ),
        (
            '{"label": "positive", "question": "?", "passage": {"text": "a"}}\n',
            "none of these labels occurs in the training data",
        ),
    ],
)
def test_another_list_is_refused(
    content: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("checked.jsonl").write_text(content)
    assert main(["prepare", "train.jsonl", "out=out.jsonl", "suspects=checked.jsonl"]) != 0
    assert message in capsys.readouterr().err and not Path("out.jsonl").exists()


def test_what_it_needs_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-data", "train.jsonl", "suspects=s.jsonl"]) == 2
    assert "suspects needs a trained bi-encoder" in capsys.readouterr().err
    assert main(["check-data", "train.jsonl", "model=model", "overwrite=true"]) == 0
    assert "no effect here: overwrite\n" in capsys.readouterr().err
