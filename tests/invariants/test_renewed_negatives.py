"""A run whose negatives are renewed on the way: the same schedule, optimizer and order, and as exact over kills as any other.

pytest tests/invariants/test_renewed_negatives.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import CheckpointError
from dpr.core.records import TrainingSample
from dpr.formats import checkpoints
from dpr.formats.training_sets import open_training_set, write_training_set
from dpr.training.callbacks import Callback
from dpr.training.trainer import BiEncoderTrainer
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import make_trainer

NAME = "dpr_biencoder"
FIRST = make_samples(24)
DEV = make_samples(6, seed=1)


def with_other_negatives(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """The same questions, each with the hard negatives of the question after it."""
    return [replace(sample, hard_negatives=other.hard_negatives) for sample, other in zip(samples, samples[1:] + samples[:1], strict=True)]


SECOND = with_other_negatives(FIRST)


class KilledAt(Callback):
    """Ends the process's part of a run without any of the ceremony of a stop."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_before_optimizer_step(self, trainer: BiEncoderTrainer) -> None:
        if trainer.progress.step + 1 == self.step:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder_folder(tmp_path_factory.mktemp("renewed") / "encoder", num_hidden_layers=1)


def trainer(encoder: Path, output_dir: Path, samples: Sequence[TrainingSample], *callbacks: Callback, **options: Any) -> BiEncoderTrainer:
    """Three steps an epoch, four epochs; a checkpoint after every step. Dropout is on, and the schedule has a slope everywhere."""
    model = tiny_model(encoder, dtype=torch.float32, dropout=0.1)
    defaults = {"num_train_epochs": 4, "save_every_steps": 1, "keep_last": 0, "warmup_steps": 2, "eval_per_epoch": 1}
    sets = ([ListSource(samples)], [ListSource(DEV, "dev")])
    return make_trainer(model, *sets, output_dir, *callbacks, **{**defaults, **options})


def state(output_dir: Path) -> dict[str, torch.Tensor]:
    newest = checkpoints.checkpoint_folders(output_dir, NAME)[0]
    tensors = checkpoints.read_tensors(newest, checkpoints.MODEL_FILE) | checkpoints.read_tensors(newest, checkpoints.OPTIMIZER_FILE)
    return {"step": torch.tensor(int(newest.name.rpartition("step")[2])), **tensors}


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_continued_elsewhere_on_the_same_files_it_is_the_run_that_was_never_interrupted(encoder: Path, tmp_path: Path) -> None:
    trainer(encoder, tmp_path / "whole", FIRST).train()
    trainer(encoder, tmp_path / "one", FIRST, stop_at_epoch=1).train()
    assert int(state(tmp_path / "one")["step"]) == 3
    trainer(encoder, tmp_path / "two", FIRST, init="continue", model_file=str(tmp_path / "one"), stop_at_epoch=3).train()
    trainer(encoder, tmp_path / "three", FIRST, init="continue", model_file=str(tmp_path / "two")).train()
    assert are_equal(state(tmp_path / "three"), state(tmp_path / "whole"))
    assert int(state(tmp_path / "three")["step"]) == 12


@pytest.fixture(scope="module")
def renewed(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A first round of two epochs, and a second one on other negatives, undisturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    trainer(encoder, folder / "one", FIRST, stop_at_epoch=2).train()
    trainer(encoder, folder / "two", SECOND, init="continue", model_file=str(folder / "one")).train()
    return folder


def test_other_negatives_make_other_weights(encoder: Path, renewed: Path, tmp_path: Path) -> None:
    trainer(encoder, tmp_path / "two", FIRST, init="continue", model_file=str(renewed / "one")).train()
    assert not are_equal(state(tmp_path / "two"), state(renewed / "two"))


@pytest.mark.parametrize("step", [7, 8, 12])
def test_killed_in_the_second_round_it_ends_with_bitwise_the_same_weights(encoder: Path, renewed: Path, tmp_path: Path, step: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        trainer(encoder, tmp_path / "two", SECOND, KilledAt(step), init="continue", model_file=str(renewed / "one")).train()
    trainer(encoder, tmp_path / "two", SECOND, init="continue", model_file=str(renewed / "one")).train()
    assert are_equal(state(tmp_path / "two"), state(renewed / "two"))


def test_killed_in_the_first_round_it_ends_with_bitwise_the_same_weights(encoder: Path, renewed: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trainer(encoder, tmp_path / "one", FIRST, KilledAt(4), stop_at_epoch=2).train()
    trainer(encoder, tmp_path / "one", FIRST, stop_at_epoch=2).train()
    assert are_equal(state(tmp_path / "one"), state(renewed / "one"))


def test_the_checkpoint_says_since_when_the_run_is_on_which_files(renewed: Path) -> None:
    newest = checkpoints.checkpoint_folders(renewed / "two", NAME)[0]
    identity = checkpoints.read_json(newest / checkpoints.STATE_FILE)["identity"]
    rounds = [(entry["from_step"], entry["train_datasets"]) for entry in identity["lineage"]["rounds"]]
    assert rounds == [(0, [ListSource(FIRST).fingerprint]), (6, [ListSource(SECOND).fingerprint])]
    assert identity["fixed"]["train_datasets"] == [ListSource(SECOND).fingerprint]


def test_the_best_checkpoint_of_a_round_is_one_of_its_own(renewed: Path) -> None:
    for name in ("one", "two"):
        assert (renewed / name / checkpoints.read_json(renewed / name / checkpoints.RUN_FILE)["best_checkpoint"]).is_dir()


def test_a_finished_round_is_left_alone(encoder: Path, renewed: Path) -> None:
    before = {path: path.read_bytes() for path in renewed.rglob("*") if path.is_file()}
    trainer(encoder, renewed / "one", FIRST, stop_at_epoch=2).train()
    trainer(encoder, renewed / "two", SECOND, init="continue", model_file=str(renewed / "one")).train()
    assert {path: path.read_bytes() for path in renewed.rglob("*") if path.is_file()} == before


def test_the_files_of_a_round_cannot_be_changed_in_the_middle_of_it(encoder: Path, renewed: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trainer(encoder, tmp_path / "two", SECOND, KilledAt(9), init="continue", model_file=str(renewed / "one")).train()
    with pytest.raises(CheckpointError, match=r"train_datasets\[0\] was .*; restore train_datasets"):
        trainer(encoder, tmp_path / "two", FIRST, init="continue", model_file=str(renewed / "one")).resume()


@pytest.mark.parametrize("wrong", [make_samples(24, seed=5), FIRST[1:] + FIRST[:1], FIRST[:-1]], ids=["others", "other order", "fewer"])
def test_other_questions_are_refused(encoder: Path, renewed: Path, tmp_path: Path, wrong: list[TrainingSample]) -> None:
    with pytest.raises(CheckpointError, match="other questions"):
        trainer(encoder, tmp_path / "two", wrong, init="continue", model_file=str(renewed / "one")).resume()


def test_another_objective_is_refused(encoder: Path, renewed: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="seed was 12345, is now 6"):
        trainer(encoder, tmp_path / "two", SECOND, init="continue", model_file=str(renewed / "one"), seed=6).resume()


def test_a_run_at_its_end_and_one_that_was_not_meant_to_continue_are_refused(encoder: Path, renewed: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is complete, at step 12 of 12"):
        trainer(encoder, tmp_path / "three", FIRST, init="continue", model_file=str(renewed / "two")).resume()
    trainer(encoder, tmp_path / "plain", FIRST, max_steps=2).train()
    with pytest.raises(CheckpointError, match=r"train\.stop_at_epoch"):
        trainer(encoder, tmp_path / "two", SECOND, init="continue", model_file=str(tmp_path / "plain")).resume()


def test_a_damaged_checkpoint_is_not_continued(encoder: Path, tmp_path: Path) -> None:
    trainer(encoder, tmp_path / "one", FIRST, stop_at_epoch=1).train()
    weights = checkpoints.resolve_checkpoint(tmp_path / "one", prefer_best=False) / checkpoints.OPTIMIZER_FILE
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="optimizer"):
        trainer(encoder, tmp_path / "two", SECOND, init="continue", model_file=str(tmp_path / "one")).resume()


def test_questions_are_the_same_wherever_they_are_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpr.data.training_data import questions_fingerprint

    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    write_training_set(tmp_path / "first.jsonl", FIRST)
    write_training_set(tmp_path / "second.jsonl", SECOND)
    stored = [questions_fingerprint(open_training_set(tmp_path / name, name="x")) for name in ("first.jsonl", "second.jsonl")]
    assert stored == [questions_fingerprint(ListSource(FIRST))] * 2
    assert questions_fingerprint(ListSource(FIRST[:-1])) != stored[0]
