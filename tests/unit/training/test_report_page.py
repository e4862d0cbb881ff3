"""Every training run leaves a report, and never fails over it."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpr.storage.durable import append_jsonl
from dpr.training.callbacks import metrics_file
from dpr.training.callbacks.metrics_file import ReportPage
from tests.helpers.tiny import ListSource, make_samples, tiny_model
from tests.helpers.training import make_trainer


def trainer(*, is_main: bool = True) -> Any:
    return SimpleNamespace(ranks=SimpleNamespace(is_main=is_main))


def test_the_page_follows_checkpoints_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ReportPage(tmp_path)
    page.on_save(trainer(), tmp_path / "dpr.step1")
    page.on_train_end(trainer(is_main=False))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(metrics_file, "REPORT_EVERY_S", 0.0)
    append_jsonl(tmp_path / "metrics.jsonl", {"step": 1, "train/loss": 2.0})
    page.on_save(trainer(), tmp_path / "dpr.step1")
    assert "1 steps" in (tmp_path / "report.html").read_text()
    append_jsonl(tmp_path / "metrics.jsonl", {"step": 2, "train/loss": 1.0})
    page.on_train_end(trainer())
    assert "2 steps" in (tmp_path / "report.html").read_text()


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "report.html").mkdir()
    with caplog.at_level(logging.WARNING, logger="dpr"):
        ReportPage(tmp_path).on_train_end(trainer())
    assert "report.html is not written" in caplog.text


def test_every_training_run_has_its_page(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "encoder", dtype=torch.float32)
    train, dev = ListSource(make_samples(16)), ListSource(make_samples(4, seed=1), "dev")
    config = {"seed": 4711, "output_dir": str(tmp_path / "run")}
    make_trainer(model, [train], [dev], tmp_path / "run", config=config, report=True).train()
    end = (tmp_path / "run" / "report.html").read_text()
    for words in (
        "4 steps",
        "best eval/nll_loss",
        "4711",
        torch.__version__,
        "Learning rate",
        "Gradient norm",
        "eval/nll_loss",
    ):
        assert words in end
    assert str(tmp_path) not in end and "is missing" not in end
