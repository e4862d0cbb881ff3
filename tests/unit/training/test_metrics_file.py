"""``metrics.jsonl`` after a kill: no torn line, no step twice, and no reason to lose a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpr.core.distributed import Ranks
from dpr.training.callbacks import metrics_file
from dpr.training.callbacks.metrics_file import MetricsFile

WHOLE = '{"step": 1, "eval/ünï": 0.5}\n{"step": 2, "eval/ünï": 0.4}\n'


def resumed_at(step: int) -> Any:
    return SimpleNamespace(ranks=Ranks(), progress=SimpleNamespace(step=step))


@pytest.mark.parametrize("torn", [b"", b'{"step": 2, "tr', '{"step": 2, "ü'.encode()[:-1], b"\0" * 20, b"\xff\xfe", b"[]\n"])
def test_torn_and_later_lines_are_dropped_on_resuming(tmp_path: Path, torn: bytes) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(WHOLE.encode() + b'{"step": 3}\n' + torn)
    MetricsFile(file).on_train_begin(resumed_at(2))
    assert file.read_text(encoding="utf-8") == WHOLE


def test_a_disk_that_refuses_it_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    file = tmp_path / "metrics.jsonl"
    file.write_text(WHOLE)
    monkeypatch.setattr(metrics_file, "durable_file", full)
    MetricsFile(file).on_train_begin(resumed_at(1))
    assert "No space left" in caplog.text and file.read_text() == WHOLE
