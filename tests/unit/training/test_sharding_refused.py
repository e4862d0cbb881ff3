"""What cannot be sharded is refused, and one process has nothing to share."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError
from dpr.training.compute import shard, sharded_towers
from tests.helpers.tiny import tiny_model


def test_tables_that_learn_by_rows_and_adapters_are_refused(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "encoder")
    model.question_model.backbone.get_input_embeddings().sparse = True
    with pytest.raises(ConfigError, match="learns by rows"):
        shard(model, Ranks(0, 2))
    model.question_model.adapter = object()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="adapter=lora are mutually"):
        shard(model, Ranks(0, 2))


def test_one_process_is_told_that_it_shares_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model(tmp_path / "encoder")
    with caplog.at_level(logging.WARNING):
        shard(model, Ranks())
    assert "has no effect on one process" in caplog.text and not sharded_towers(model)
