"""Every training run leaves a report, and never fails over it."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpr.formats.durable import append_jsonl
from dpr.training.callbacks import ReportPage


def trainer(*, is_main: bool = True) -> Any:
    return SimpleNamespace(ranks=SimpleNamespace(is_main=is_main))


def test_the_page_follows_checkpoints_and_the_end(tmp_path: Path) -> None:
    page = ReportPage(tmp_path)
    append_jsonl(tmp_path / "metrics.jsonl", {"step": 1, "train/loss": 2.0})
    page.on_save(trainer(), tmp_path / "dpr.step1")
    assert "1 steps" in (tmp_path / "report.html").read_text()
    append_jsonl(tmp_path / "metrics.jsonl", {"step": 2, "train/loss": 1.0})
    page.on_train_end(trainer())
    assert "2 steps" in (tmp_path / "report.html").read_text()


def test_only_the_first_rank_writes(tmp_path: Path) -> None:
    ReportPage(tmp_path).on_train_end(trainer(is_main=False))
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "report.html").mkdir()
    with caplog.at_level(logging.WARNING, logger="dpr"):
        ReportPage(tmp_path).on_save(trainer(), tmp_path)
    assert "report.html is not written" in caplog.text
