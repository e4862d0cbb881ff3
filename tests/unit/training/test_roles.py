"""What a changed setting means for a run that is resumed is the role that the setting declares: refused, a
warning, or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import CheckpointError
from dpr.core.records import TrainingSample
from dpr.core.settings import IDENTITY, ROLES, UPDATES, WARNED, Setting, flat_values, settings
from dpr.formats.training_files.dpr import write_training_set
from dpr.jobs.train import build_model, open_sets
from dpr.models.settings import TowerSettings
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.command_settings import TrainCommand
from dpr.training.data_sets import resolve_training_files
from dpr.training.run import RunProgress
from dpr.training.settings import LossSettings, TrainNode
from tests.helpers.needs import put
from tests.helpers.tiny import encoder_folder, make_samples
from tests.helpers.training import trainer_of

SETTINGS = settings(TrainCommand)
HERE = "tests.unit.training.test_roles"
CHANGED: dict[str, Any] = {
    "compat": "dpr",
    "train_sampling_rates": [2.0],
    "loss_scale_factors": [2.0],
    "loss.name": {"use": "dpr.losses.nll:BiEncoderNllLoss", "max_scores": 1000},
    "loss.candidates": "dpr",
    "loss.terms": {"use": "dpr.losses.nll:BiEncoderNllLoss", "weight": 0.5},
    "loss.temperature": 0.5,
    "train.callbacks": f"{HERE}:ACallback",
    "train.sampling.temperature": 2.0,
    "train.gradient_accumulation_steps": 3,
    "train.precision": "bf16",
    "encoder.pooling": "mean",
    "encoder.sequence_length": 20,
    "encoder.query_prompt": "ba ",
}
IN_EFFECT = {"loss_scale_factors": "datasets", "compat": "encoder.dpr_trailing_sep"}
"""Settings of which what they lead to is compared, by its name."""


class ACallback(Callback):
    pass


def other(entry: Setting) -> Any:
    """Another value than the base configuration has."""
    if entry.key in CHANGED:
        return CHANGED[entry.key]
    value = flat_values(BASE)[entry.key] if entry.rule.on_resume else entry.default
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2 or 1
    return value / 2 if value else 0.25


BASE = TrainCommand(train_datasets="train.json", dev_datasets="train.json", device="cpu", seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("roles")
    encoder_folder(folder / "encoder")
    write_training_set(folder / "train.json", [with_teacher(sample) for sample in make_samples(12)])
    trainer(folder, config_of(folder)).train()
    yield folder
    shutil.rmtree(folder)


def with_teacher(sample: TrainingSample) -> TrainingSample:
    return replace(
        sample, positives=tuple(replace(passage, teacher_score=1.0) for passage in sample.positives)
    )


def config_of(folder: Path, key: str = "", value: Any = None) -> TrainCommand:
    config = replace(
        BASE, output_dir=str(folder / "run"), encoder=TowerSettings(), train=TrainNode(), loss=LossSettings()
    )
    config.encoder.pretrained_model_cfg, config.encoder.sequence_length = str(folder / "encoder"), 24
    config.encoder.pretrained = False
    config.train.num_workers, config.train.batch_size, config.train.max_steps, config.train.token_store = (
        0,
        4,
        2,
        "off",
    )
    if key:
        put(config, key, value)
    config.check()
    return config


def trainer(folder: Path, config: TrainCommand, dev: str = "train.json") -> BiEncoderTrainer:
    sets = open_sets(
        resolve_training_files([str(folder / "train.json")], {}), config, config.loss_scale_factors
    )
    dev_sets = (
        sets if dev == "train.json" else open_sets(resolve_training_files([str(folder / dev)], {}), config)
    )
    return trainer_of(config, build_model(config), sets, dev_sets)


def start(folder: Path, config: TrainCommand, dev: str = "train.json") -> RunProgress:
    """Resumes the run, and leaves it again before an update."""
    job = trainer(folder, config, dev)
    try:
        return job.resume()
    finally:
        job.checkpoints.lock.release()


def test_every_setting_says_what_a_change_means() -> None:
    assert not [entry.key for entry in SETTINGS if entry.rule.on_resume not in ROLES]


SOME = (
    "seed loss_scale_factors train_sampling_rates compat train.hard_negatives "
    "train.gradient_accumulation_steps train.augment.crop_tokens train.sampling.temperature "
    "loss.name loss.candidates loss.temperature loss.terms loss.kl_weight encoder.pooling "
    "encoder.sequence_length encoder.query_prompt encoder.fix_ctx_encoder train.learning_rate "
    "train.precision train.max_steps train.callbacks train.ema_decay "
    "train.grad_cache_tokens encoder.dropout encoder.attention_dropout encoder.packed"
).split()
"""Of every way from a setting to the identity of a run, one or two."""


@pytest.mark.parametrize(
    "entry",
    [
        entry
        for entry in SETTINGS
        if entry.key in SOME and entry.rule.on_resume in (IDENTITY, UPDATES, WARNED)
    ],
    ids=lambda entry: entry.key,
)
def test_a_changed_setting_is_refused_or_warned_about(
    folder: Path, entry: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    config, named = config_of(folder, entry.key, other(entry)), IN_EFFECT.get(entry.key, entry.key)
    if entry.rule.on_resume in (IDENTITY, UPDATES) or entry.key == "compat":  # the run is finished
        with pytest.raises(CheckpointError, match=rf"{named}\S* was ") as error:
            start(folder, config)
        assert "resume=force" in str(error.value)
    else:
        assert start(folder, config).step == 2
        assert f"resuming with {named} changed from" in caplog.text


@pytest.mark.parametrize("key", ["", "train.keep_last", "train.num_workers"])
def test_a_setting_without_effect_is_changed_without_a_word(
    folder: Path, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    value = next((other(entry) for entry in SETTINGS if entry.key == key), None)
    assert start(folder, config_of(folder, key, value)).step == 2
    assert "changed" not in caplog.text


def test_a_finished_run_takes_more_steps_and_a_value_that_is_spelled_another_way(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(folder, "train.max_steps", 9)  # and so a longer warm-up
    config.train.adam_betas = "[0.9,0.999]"
    assert start(folder, config).step == 2
    assert "train.warmup_steps changed from 0 to 1" in caplog.text and "adam_betas" not in caplog.text
    config.train.adam_betas = "[0.8,0.9]"
    with pytest.raises(CheckpointError, match=r"different run: train.adam_betas was"):
        start(folder, config)
    config.train.adam_betas = "[0.9,0.999]"
    config.train.warmup_steps = 3
    with pytest.raises(CheckpointError, match=r"different run: train.warmup_steps was 0, is now 3"):
        start(folder, config)


def test_another_learning_rate_of_a_run_that_goes_on_is_only_warned_about(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(folder)
    config.output_dir = str(tmp_path / "run")
    config.train.max_steps = 4
    config.train.stop_at_epoch = 1
    trainer(folder, config).train()
    config.train.learning_rate = 0.5
    assert start(folder, config).step == 3
    assert "resuming with train.learning_rate changed from" in caplog.text


def test_a_run_that_early_stopping_ended_is_finished(folder: Path, tmp_path: Path) -> None:
    config = config_of(folder)
    config.output_dir = str(tmp_path / "run")
    config.train.max_steps = 9
    config.train.learning_rate = 0.0  # which improves nothing
    config.train.early_stopping.patience = 1
    trainer(folder, config).train()
    config.train.learning_rate = 0.5
    with pytest.raises(CheckpointError, match=r"different run: train.learning_rate was 0.0, is now 0.5"):
        start(folder, config)


def test_another_vocabulary_is_refused_and_other_dev_data_warned_about(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(folder, tmp_path / "moved")
    config = config_of(tmp_path / "moved")
    assert start(tmp_path / "moved", config).step == 2
    assert "dev_datasets" not in caplog.text
    write_training_set(tmp_path / "moved" / "dev.json", make_samples(4, seed=5))
    assert start(tmp_path / "moved", config, dev="dev.json").step == 2
    assert "resuming with dev_datasets.content[0] changed from" in caplog.text
    words = (tmp_path / "moved" / "encoder" / "vocab.txt").read_text().split("\n")
    words[-3], words[-2] = words[-2], words[-3]
    (tmp_path / "moved" / "encoder" / "vocab.txt").write_text("\n".join(words))
    with pytest.raises(CheckpointError, match=r"encoder\.tokenizer was "):
        start(tmp_path / "moved", config)
