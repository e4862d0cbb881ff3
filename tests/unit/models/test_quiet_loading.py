"""Loading a backbone prints nothing about its pooler, and a progress bar on the main rank alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModel
from transformers.utils import logging

from dpr.core.distributed import Ranks
from dpr.models import backbones
from dpr.models.backbones import load_backbone
from tests.helpers.tiny import encoder_folder


def test_nothing_is_said_of_the_pooler_and_each_bar_comes_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    folder = encoder_folder(tmp_path / "encoder")
    AutoModel.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)  # with its pooler
    level, reported = logging.get_verbosity(), []
    logging.add_handler(caplog.handler)  # its own writes to what was the standard error when it was imported
    request.addfinalizer(lambda: logging.remove_handler(caplog.handler))
    for rank, is_terminal in ((0, True), (1, True), (0, False)):
        capfd.readouterr()
        monkeypatch.setattr(backbones, "current_ranks", lambda rank=rank: Ranks(rank, 2))
        monkeypatch.setattr(backbones, "shows_bars", lambda stream, shows=is_terminal: shows)
        load_backbone(str(folder))
        assert logging.is_progress_bar_enabled() and logging.get_verbosity() == level
        reported.append("".join(capfd.readouterr()))
    reported.append(caplog.text)
    assert "pooler" not in "".join(reported) and "REPORT" not in "".join(reported)
    assert ["Loading weights" in text for text in reported[:3]] == [True, False, False]
