"""Training from a token store has the losses, metrics and weights of the text, bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.data.tensorizer import Tensorizer
from dpr.data.tokens import StoredTokens
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.training_files.dpr import write_training_set
from dpr.jobs.train import build_model, open_sets
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.command_settings import TrainCommand
from dpr.training.data_sets import resolve_training_files, with_token_stores
from dpr.training.validations.protocol import Metrics
from tests.helpers.tiny import encoder_folder, make_samples
from tests.helpers.training import assert_same_bits, trainer_of

ROWS = 48


class Curve(Callback):
    def __init__(self) -> None:
        self.metrics: list[Metrics] = []

    def on_log(self, trainer: BiEncoderTrainer, metrics: Metrics) -> None:
        self.metrics.append({key: value for key, value in metrics.items() if not key.startswith("perf/")})

    def on_validate_end(self, trainer: BiEncoderTrainer, metrics: Metrics) -> None:
        self.metrics.append(dict(metrics))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    encoder_folder(tmp_path / "bert")
    write_training_set(tmp_path / "train.json", make_samples(ROWS, seed=1))
    write_training_set(tmp_path / "dev.json", make_samples(20, seed=2))
    return tmp_path


def config_of(folder: Path, run: str, **train: Any) -> TrainCommand:
    config = TrainCommand(output_dir=str(folder / run))
    config.encoder.pretrained_model_cfg, config.encoder.pretrained = str(folder / "bert"), False
    config.encoder.sequence_length = 12
    settings = {"batch_size": 8, "num_train_epochs": 3, "learning_rate": 1e-2}
    settings |= {"warmup_steps": 2, "log_batch_step": 1, "num_workers": 0}
    for key, value in {**settings, **train}.items():
        setattr(config.train, key, value)
    config.train_datasets, config.dev_datasets = [str(folder / "train.json")], [str(folder / "dev.json")]
    config.val_av_rank_start_epoch = 2
    config.check()
    return config


def opened(folder: Path, name: str, config: TrainCommand, model: Any) -> list[Any]:
    return with_token_stores(
        open_sets(resolve_training_files([str(folder / name)], {}), config), config, model
    )


def trained(folder: Path, config: TrainCommand) -> tuple[list[Metrics], dict[str, torch.Tensor], set[type]]:
    torch.manual_seed(5)
    model = build_model(config)
    sets = [opened(folder, name, config, model) for name in ("train.json", "dev.json")]
    trainer = trainer_of(config, model, *sets)
    curve = Curve()
    trainer.callbacks.insert(0, curve)
    trainer.train()
    return curve.metrics, model.state_dict(), {type(source) for part in sets for source, _ in part}


def test_prefixes_are_those_of_the_text_in_training_and_validation(folder: Path) -> None:
    results = []
    for number, (setting, prefix) in enumerate((("off", "ba bo: "), ("auto", "ba bo: "), ("auto", None))):
        config = config_of(folder, f"run-{number}", token_store=setting)
        entry = {"special_token": "be", "query_prefix": prefix, "passage_prefix": prefix}
        config.datasets = {name: {"file": str(folder / f"{name}.json"), **entry} for name in ("train", "dev")}
        torch.manual_seed(5)
        model = build_model(config)
        named = [
            open_sets(resolve_training_files([name], config.datasets), config) for name in ("train", "dev")
        ]
        trainer = trainer_of(config, model, *(with_token_stores(sets, config, model) for sets in named))
        curve = Curve()
        trainer.callbacks.insert(0, curve)
        trainer.train()
        results.append(json.dumps(curve.metrics))
    assert results[0] == results[1] != results[2]
    before = [json.loads(metrics)[0]["train/loss"] for metrics in results]
    assert before[0] != before[2]


@pytest.mark.parametrize(("crop", "mask"), [(9, 0.15)])
def test_curve_metrics_and_weights_are_bitwise_of_the_text(folder: Path, crop: int, mask: float) -> None:
    results = []
    for number, setting in enumerate(("off", "auto", "auto", str(folder / "tokens"))):
        config = config_of(folder, f"run-{number}", token_store=setting)
        config.train.augment.crop_tokens, config.train.augment.mask_probability = crop, mask
        results.append(trained(folder, config))
    (expected, weights, kinds), *others = results
    assert kinds == {TrainingSet}
    assert len(expected) == 3 * (ROWS // 8) + 3 and "eval/avg_rank" in expected[-1] | expected[-2]
    for metrics, found, found_kinds in others:
        assert found_kinds == {StoredTokens}
        assert json.dumps(metrics) == json.dumps(expected)
        assert_same_bits(found, weights)


def test_nothing_is_tokenised_in_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(folder, "run")
    model = build_model(config)
    sets = [opened(folder, name, config, model) for name in ("train.json", "dev.json")]
    monkeypatch.setattr(Tensorizer, "bare_tokens", None)
    monkeypatch.setattr(
        Tensorizer, "_encode", lambda self, texts, *_: pytest.fail("tokenised") if texts else []
    )
    trainer_of(config, model, *sets).train()


def test_a_trainer_that_is_given_a_file_stores_its_tokens_too(folder: Path) -> None:
    for setting, kind in (("off", TrainingSet), ("auto", StoredTokens)):
        model, files = build_model(config_of(folder, "run")), (folder / "train.json", folder / "dev.json")
        trainer = BiEncoderTrainer(model, *files, output_dir=folder / setting, token_store=setting)
        opened = [*trainer.plan.dataset.sources, *(source for source, _ in trainer._dev_sets)]
        assert [type(source) for source in opened] == [kind, kind]


@pytest.mark.parametrize(
    ("train", "kind"),
    [
        ({}, StoredTokens),
        ({"dry_run": True}, TrainingSet),
        ({"max_steps": 2}, TrainingSet),
        ({"max_steps": 3}, StoredTokens),
        ({"max_steps": 2, "token_store": "folder"}, StoredTokens),
        ({"token_store": "off"}, TrainingSet),
    ],
)
def test_when_tokens_are_stored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, train: dict[str, Any], kind: type
) -> None:
    monkeypatch.chdir(folder)
    config = config_of(folder, "run", **train)
    model = build_model(config)
    ((source, _),) = opened(folder, "train.json", config, model)
    assert type(source) is kind
    config = config_of(folder, "run", max_steps=1)
    is_there = kind is StoredTokens and "token_store" not in train
    assert isinstance(opened(folder, "train.json", config, model)[0][0], StoredTokens) == is_there, (
        "a store that is there is used by all"
    )
