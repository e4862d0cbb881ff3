"""Every setting of a run is read by the job that it belongs to."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from dpr.training.command_settings import BiEncoderTrainConfig
from dpr.training.settings import TrainSettings
from tests.architecture.source_files import package_sources


@pytest.mark.parametrize("kind", [TrainSettings, BiEncoderTrainConfig])
def test_every_setting_of_training_is_read_somewhere(kind: type) -> None:
    texts = "".join(re.sub(r'"""(?s:.*?)"""', "", source.text) for source in package_sources() if source.room != "cli")
    unread = [item.name for item in fields(kind) if not re.search(rf"\.{item.name}\b", texts)]
    assert not unread
