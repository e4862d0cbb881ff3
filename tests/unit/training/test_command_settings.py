"""Training settings: the defaults are good, and every check names the key and what it may be."""

from typing import Any

import pytest

from dpr.core.errors import ConfigError
from dpr.training.command_settings import TrainCommand
from tests.helpers.training import put


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("encoder.pooling", "median", "cls, mean, last"),
        ("encoder.question_length", 1, "at least 3"),
        ("encoder.dropout", 1.0, "[0, 1)"),
        ("loss.name", "triplet", "nll"),
        ("loss.temperature", 0.0, "above 0"),
        ("train.precision", "fp8", "fp32, bf16, fp16"),
        ("train.batch_size", 0, "at least 1"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(key: str, value: Any, expected: str) -> None:
    config = TrainCommand()
    put(config, key, value)
    with pytest.raises(ConfigError) as error:
        config.check()
    assert f"{key}=" in str(error.value) and expected in str(error.value)


def test_settings_that_contradict_are_refused_together() -> None:
    config = TrainCommand()
    config.encoder.shared = config.encoder.fix_ctx_encoder = True
    with pytest.raises(ConfigError, match=r"encoder\.shared=true and encoder\.fix_ctx_encoder=true"):
        config.check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"encoder\.dropout=0\.1 asks for; set encoder\.attention_dropout=0 "),
        ({"attention_dropout": 0.0, "precision": "fp32"}, "varlen needs train.precision=bf16 or fp16"),
        ({"attention_dropout": 0.0, "packed": False}, "and encoder.packed=false are mutually"),
        ({"dropout": 0.0}, None),
    ],
)
def test_attention_without_dropout_says_what_it_needs(changes: dict[str, Any], message: str | None) -> None:
    config = TrainCommand(train_datasets="train.json")
    config.encoder.attention, config.train.precision = "varlen", "bf16"
    for name, value in changes.items():
        part: Any = next(part for part in (config.encoder, config.train, config) if hasattr(part, name))
        setattr(part, name, value)
    if message is None:
        config.check()
    else:
        with pytest.raises(ConfigError, match=message):
            config.check()


def test_compat_sets_what_is_absent_and_leaves_what_is_said() -> None:
    config = TrainCommand(compat="dpr")
    config.check()
    assert (config.candidates(), config.trailing_sep(), config.lr_schedule()) == ("dpr", True, "dpr")
    config.loss.candidates, config.encoder.dpr_trailing_sep = "distinct", False
    assert (config.candidates(), config.trailing_sep()) == ("distinct", False)
    plain = TrainCommand()
    assert (plain.candidates(), plain.trailing_sep(), plain.lr_schedule()) == ("distinct", False, "linear")


@pytest.mark.parametrize(
    ("key", "value"),
    [("train.lr_schedule", "cosine"), ("loss.temperature", 0.05), ("encoder.pooling", "mean")],
)
def test_compat_refuses_what_the_original_has_not(key: str, value: Any) -> None:
    config = TrainCommand()
    put(config, key, value)
    config.check()
    config.compat = "dpr"
    with pytest.raises(ConfigError, match=f"compat=dpr and {key} are mutually exclusive"):
        config.check()
