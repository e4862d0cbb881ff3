"""train.renew_negatives: what a run mines is what dpr mine finds with its checkpoint, and the run is exact over kills.

pytest tests/invariants/test_renewed_in_run.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import CheckpointError, ConfigError
from dpr.core.records import Passage, TrainingSample
from dpr.formats import checkpoints
from dpr.formats.training_sets import open_training_set, write_training_set
from dpr.jobs import renewal
from dpr.jobs.sources import resolve_training_files
from dpr.jobs.train import build_model, build_trainer, open_sets
from dpr.mining.dense import DenseSearch
from dpr.mining.job import mine
from dpr.mining.settings import MiningSettings
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import TowerSettings
from dpr.training.command_settings import BiEncoderTrainConfig
from dpr.training.settings import TrainSettings
from dpr.training.trainer import BiEncoderTrainer
from tests.helpers.tiny import encoder_folder, sentence
from tests.helpers.training import DEFAULTS, make_trainer
from tests.invariants.test_renewed_negatives import KilledAt, are_equal, state

QUESTIONS = 24
NEGATIVES = {"per_question": 2, "max_relative_score": 0.999}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a train set without negatives (one positive is not in the corpus), and questions for validation."""
    folder, rng = tmp_path_factory.mktemp("renewed"), random.Random(5)
    encoder_folder(folder / "encoder", num_hidden_layers=1)
    texts = [sentence(rng, rng.randint(4, 16)) for _ in range(60)]
    (folder / "corpus.tsv").write_text("id\ttext\ttitle\n" + "".join(f"p{row}\t{text}\t\n" for row, text in enumerate(texts)))
    samples = [TrainingSample(f"{texts[row][:12]} {row % 7}", (Passage(texts[row]),)) for row in range(QUESTIONS)]
    samples[3] = TrainingSample(samples[3].question, (Passage("ba be bi outside"),))
    write_training_set(folder / "train.json", samples)
    questions = [{"id": str(row), "question": texts[row][:9]} for row in range(40, 50)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{row}\tp{row}\t1\n" for row in range(40, 50)))
    return folder


def config_of(folder: Path, output_dir: Path, **options: Any) -> BiEncoderTrainConfig:
    files = {key: str(folder / name) for key, name in (("corpus", "corpus.tsv"), ("questions", "questions.jsonl"), ("qrels", "qrels.tsv"))}
    entry = {"kind": "retrieval", **files, "negatives": NEGATIVES}
    own = {"num_train_epochs": 4, "save_every_steps": 1, "keep_last": 0, "learning_rate": 1e-3, "renew_negatives": 1, "validation": [entry]}
    own["best_metric"] = "eval/questions/mrr@10"
    return BiEncoderTrainConfig(
        train_datasets=[str(folder / "train.json")],
        output_dir=str(output_dir),
        device="cpu",
        train=TrainSettings(**{**DEFAULTS, **own, **options}),
        encoder=TowerSettings(pretrained_model_cfg=str(folder / "encoder"), pretrained=False, sequence_length=24, dropout=0.1),
    )


def trainer(folder: Path, output_dir: Path, *callbacks: Any, **options: Any) -> BiEncoderTrainer:
    """Three steps and a validation an epoch, four epochs; a checkpoint after every step."""
    config = config_of(folder, output_dir, **options)
    torch.manual_seed(0)
    model = build_model(config)
    sets = open_sets(resolve_training_files(config.train_datasets, {}), config)
    made = build_trainer(config, model, sets, [])
    made.callbacks[:0] = callbacks
    return made


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("whole") / "run"
    trainer(folder, output_dir).train()
    return output_dir


def test_a_run_mines_what_dpr_mine_finds_with_its_checkpoint(folder: Path, whole: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in (whole / "negatives").iterdir()) == ["step3", "step6", "step9"]
    for step in (3, 9):
        model = BiEncoder.load(str(whole / f"dpr_biencoder.step{step}"))
        text = open_training_set([folder / "train.json"], name="train")
        out = tmp_path / f"{step}.jsonl"
        mine(text, out, MiningSettings(**NEGATIVES), search=DenseSearch(model), corpus=folder / "corpus.tsv")
        ours, theirs = (
            [json.loads(line) for line in file.read_text().splitlines()] for file in (whole / f"negatives/step{step}/train.jsonl", out)
        )
        del ours[3], theirs[3]  # a run knows no score of a positive outside of the corpus
        assert ours == theirs
        assert sum(len(row["hard_negative_ctxs"]) for row in ours) > 20


def test_the_run_trains_on_what_it_mined(folder: Path, whole: Path, tmp_path: Path) -> None:
    trainer(folder, tmp_path / "first", renew_negatives=0, stop_at_epoch=1).train()
    trainer(folder, tmp_path / "never", renew_negatives=0).train()
    weights = [checkpoints.read_tensors(run / "dpr_biencoder.step3", checkpoints.MODEL_FILE) for run in (tmp_path / "first", whole)]
    assert are_equal(*weights)
    assert not are_equal(state(tmp_path / "never"), state(whole))


@pytest.mark.parametrize(("step", "workers"), [(4, 0), (6, 1), (12, 0)])
def test_killed_anywhere_it_ends_with_bitwise_the_same_weights(folder: Path, whole: Path, tmp_path: Path, step: int, workers: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        trainer(folder, tmp_path / "run", KilledAt(step), num_workers=workers).train()
    trainer(folder, tmp_path / "run", num_workers=workers).train()
    assert are_equal(state(tmp_path / "run"), state(whole))


def test_killed_while_it_mines_it_mines_again(folder: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(renewal, "_mine", killed)
        with pytest.raises(KeyboardInterrupt):
            trainer(folder, tmp_path / "run").train()
    trainer(folder, tmp_path / "run", keep_last=1).train()
    assert are_equal(state(tmp_path / "run"), state(whole))
    kept = {path.name for path in (tmp_path / "run" / "negatives").iterdir()}
    assert "step9" in kept and len(kept) <= 2  # those of the last checkpoint and of the best


def test_negatives_that_are_missing_are_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trainer(folder, tmp_path / "run", KilledAt(5)).train()
    (tmp_path / "run/negatives/step3/train.jsonl").unlink()
    with pytest.raises(CheckpointError, match="the negatives that the run goes on with are missing"):
        trainer(folder, tmp_path / "run").train()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validation": None}, "train.renew_negatives=1 needs a validation that searches the whole corpus"),
        ({"every": 2}, r"train.renew_negatives=1 must be a multiple of train.validation\[0\].every=2"),
        ({"negatives": {"per_questoin": 1}}, r"unknown setting train.validation\[0\].negatives.per_questoin; did you mean per_question"),
        ({"negatives": {"veto_above": 0.5}}, "veto_above is a setting of a cross-encoder"),
    ],
)
def test_what_cannot_be_mined_is_refused(folder: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    entry = config_of(folder, tmp_path).train.validation[0]
    validation = [] if changes.get("validation", 0) is None else [{**entry, **changes}]
    with pytest.raises(ConfigError, match=message):
        trainer(folder, tmp_path / "run", validation=validation)


def test_from_python_the_callback_is_asked_for(folder: Path, tmp_path: Path) -> None:
    from tests.helpers.tiny import ListSource, make_samples, tiny_model

    searched = config_of(folder, tmp_path).train.validation
    with pytest.raises(ConfigError, match=r"train\.renew_negatives is for dpr train"):
        make_trainer(
            tiny_model(folder / "encoder"), [ListSource(make_samples(8))], [], tmp_path / "run", renew_negatives=1, validation=searched
        )
