"""``dpr mine cross_encoder=FOLDER`` from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.cli.main import main
from dpr.core.records import Passage
from dpr.formats.stored_training_set import TrainingSet
from dpr.models.cross_encoder import CrossEncoder
from tests.unit.mining.conftest import records
from tests.unit.models.test_cross_encoder import classifier_folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier_folder(tmp_path_factory.mktemp("classifier") / "folder", num_labels=2)


def negatives(path: Path) -> list[tuple[str, dict[str, Any]]]:
    return [(row["question"], entry) for row in records(path) for entry in row["hard_negative_ctxs"]]


def test_the_command_asks_the_classifier_and_writes_its_scores(
    tmp_path: Path, train: TrainingSet, corpus_file: Path, model_folder: Path, classifier: Path
) -> None:
    whole = tmp_path / "whole.jsonl"
    arguments = [f"corpus={corpus_file}", f"model_file={model_folder}", f"cross_encoder={classifier}"]
    arguments += ["device=cpu", "per_question=3", f"out={whole}"]
    assert main(["mine", str(tmp_path / "train.jsonl"), *arguments]) == 0
    kept = negatives(whole)
    pairs = [(question, Passage(entry["text"], entry["title"])) for question, entry in kept]
    model = CrossEncoder.load(classifier)
    scores = torch.tensor(model.log_odds(pairs)).sigmoid().tolist()
    assert [entry["cross_encoder_score"] for _, entry in kept] == pytest.approx(scores, abs=1e-3)
    assert kept
    assert [entry["teacher_score"] for _, entry in kept] == pytest.approx(model.log_odds(pairs), abs=1e-3)
    positives = [
        (record["question"], Passage(entry["text"], entry["title"]), entry["teacher_score"])
        for record in records(whole)
        for entry in record["positive_ctxs"]
    ]
    assert [score for *_, score in positives] == pytest.approx(
        model.log_odds([pair[:2] for pair in positives]), abs=1e-3
    )
    assert max(scores) < 0.5 + 1e-4
    assert json.loads(Path(f"{whole}.audit.json").read_text())["left_out"]["vetoed by the cross-encoder"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine", "corpus=missing.tsv"], "missing.tsv: cannot be read"),
        (["mine", "cross_encoder=missing"], "missing"),
        (["mine", "out=train.jsonl/mined.jsonl"], "train.jsonl is not a folder"),
        (["score", "corpus=missing.tsv"], "missing.tsv: cannot be read"),
        (["score", "cross_encoder=missing"], "missing"),
    ],
)
def test_names_are_looked_at_before_the_data_are_read(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").write_text("not read\n")
    command, *others = arguments
    assert main([command, "train.jsonl", *(() if "out=" in others[0] else ("out=o.jsonl",)), *others]) != 0
    assert (
        message in (shown := capsys.readouterr().err)
        and "train.jsonl:1" not in shown
        and "not training data" not in shown
    )
