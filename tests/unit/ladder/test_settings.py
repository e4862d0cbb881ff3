"""Ladder settings: conflicts and values out of range are reported by name before anything runs."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from dpr.core.errors import ConfigError
from dpr.jobs.ladder.settings import LadderConfig, MineConfig, RoundsConfig
from dpr.mining.settings import MiningSettings


def config(**values: Any) -> LadderConfig:
    """A sound configuration with some values set, by dotted key with two underscores for the dot."""
    made = LadderConfig(train_datasets=["train.jsonl"], corpus="corpus.tsv", output_dir="runs/x")
    for key, value in values.items():
        *sections, name = key.split("__")
        part: Any = made
        for section in sections:
            part = getattr(part, section)
        assert hasattr(part, name)
        setattr(part, name, value)
    return made


def test_defaults_pass() -> None:
    config().check()
    config(ladder__mode="continue").check()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"corpus": None}, "corpus is not set"),
        ({"output_dir": None}, "output_dir is not set"),
        ({"train_datasets": None}, "train_datasets is not set"),
        ({"ladder__mode": "often"}, "fresh, continue"),
        ({"ladder__rounds": 0}, "ladder.rounds=0"),
        ({"ladder__processes": 0}, "ladder.processes=0"),
        ({"ladder__every_epochs": 2}, "ladder.mode=continue"),
        ({"ladder__qrels": "qrels.tsv"}, "ladder.questions"),
        ({"mine__per_question": 0}, "mine.per_question=0"),
        ({"mine__to_rank": 3, "mine__from_rank": 4}, "mine.to_rank=3"),
        ({"mine__near_duplicate": 1.5}, "mine.near_duplicate=1.5"),
        ({"mine__veto_above": 0.5}, "mine.cross_encoder"),
        ({"mine__pick": "best"}, "top, sample"),
        ({"bm25__from_rank": 200}, "bm25.to_rank=100 is below bm25.from_rank=200"),
        ({"bm25__b": 2.0}, "bm25.b=2.0"),
        ({"bm25__pick": "best"}, "bm25.pick=best"),
        ({"train__dry_run": True}, "ladder.plan=true"),
        ({"init": "resume"}, "the ladder sets init and resume itself"),
        ({"resume": "force"}, "the ladder sets init and resume itself"),
        ({"train__batch_size": 0}, "train.batch_size=0"),
        ({"ladder__mode": "continue", "train__max_steps": 5}, "train.max_steps=0"),
        ({"ladder__mode": "continue", "train__early_stopping__patience": 1}, "early_stopping"),
        ({"ladder__mode": "continue", "train__stop_at_epoch": 1}, "ladder.every_epochs"),
        ({"ladder__mode": "continue", "ladder__keep_earlier": False}, "ladder.keep_earlier=false"),
        (
            {"ladder__mode": "continue", "train__num_train_epochs": 40, "ladder__every_epochs": 20, "ladder__rounds": 3},
            "train.num_train_epochs=40 are too few for ladder.rounds=3 of ladder.every_epochs=20",
        ),
        ({"ladder__mode": "continue", "train__num_train_epochs": 2, "ladder__rounds": 3}, "too few for ladder.rounds=3; every"),
    ],
)
def test_a_mistake_is_reported_by_name(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(**values).check()
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("rounds", "every", "epochs", "stops"),
    [(1, 0, 40, [0]), (2, 0, 40, [20, 0]), (3, 0, 40, [13, 26, 0]), (3, 0, 4, [1, 2, 0]), (3, 5, 40, [5, 10, 0])],
)
def test_when_the_rounds_of_a_continued_run_end(rounds: int, every: int, epochs: int, stops: list[int]) -> None:
    assert RoundsConfig(rounds=rounds, every_epochs=every).stop_epochs(epochs) == stops


def test_what_dpr_mine_takes_is_taken_here_too() -> None:
    config(mine__near_duplicate=0.0).check()
    assert {item.name for item in fields(MiningSettings)} <= {item.name for item in fields(MineConfig)}
