"""No setting of a run is left out on the way from the configuration to the trainer."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields

import pytest

from dpr.assembly import training
from dpr.training.optimizer import OptimizerSettings
from dpr.training.settings import BatchSettings, CheckpointSettings, ComputeSettings, Periods
from dpr.training.validations.dev_sets import ValidationSettings


@pytest.mark.parametrize("group", [BatchSettings, CheckpointSettings, ComputeSettings, Periods, OptimizerSettings, ValidationSettings])
def test_every_field_of_a_group_is_given(group: type) -> None:
    calls = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(training)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == group.__name__
    ]
    assert calls
    for call in calls:
        given = {keyword.arg for keyword in call.keywords}
        assert given == {item.name for item in fields(group)}


def test_every_setting_of_training_is_read_somewhere() -> None:
    from dpr.config.training import BiEncoderTrainConfig, TrainConfig

    def methods(kind: type) -> str:
        members = vars(kind).items()
        return "".join(inspect.getsource(member) for name, member in members if callable(member) and not name.startswith(("_", "check")))

    texts = inspect.getsource(training) + methods(TrainConfig)
    texts += "".join(inspect.getsource(member.fget) for member in vars(BiEncoderTrainConfig).values() if isinstance(member, property))
    texts += methods(BiEncoderTrainConfig)
    for prefix, kind in (("train.", TrainConfig), ("config.", BiEncoderTrainConfig)):
        unread = [item.name for item in fields(kind) if f"{prefix}{item.name}" not in texts and f"self.{item.name}" not in texts]
        assert unread == [], prefix
