"""``encoder.pretrained_model_cfg`` is a setting of every job that loads a model; what a checkpoint brings
itself is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpr.cli.keys import check_keys
from dpr.core.settings import settings
from dpr.embedding.settings import EmbedConfig
from dpr.retrieval.settings import RetrievalConfig
from dpr.training.command_settings import TrainCommand

CONF = [Path(__file__).parents[3] / "conf"]
KEY = "encoder.pretrained_model_cfg=bert"


@pytest.mark.parametrize("job", [EmbedConfig, RetrievalConfig, TrainCommand])
def test_the_override_is_known(job: type) -> None:
    assert check_keys([KEY], {entry.key: entry for entry in settings(job)}, CONF) == ([KEY], [])


@pytest.mark.parametrize("job", [EmbedConfig, RetrievalConfig])
@pytest.mark.parametrize(
    "old", ["encoder.dropout=0.1", "encoder=hf_bert", "encoder.encoder_model_type=hf_bert"]
)
def test_the_rest_is_answered_by_a_warning(job: type, old: str) -> None:
    kept, warnings = check_keys([old], {entry.key: entry for entry in settings(job)}, CONF)
    assert kept == []
    assert warnings == [f"{old.partition('=')[0]} is ignored: the checkpoint contains its encoder"]
