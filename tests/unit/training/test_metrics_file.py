"""metrics.jsonl after a kill has no torn line and no step twice; every run leaves a report; neither is a reason to lose a run."""

import json
import logging
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpr.core.distributed import Ranks
from dpr.evaluation.report import write_report
from dpr.evaluation.runs import read_training
from dpr.formats.text_input import MAX_LINE_BYTES
from dpr.storage.durable import append_jsonl
from dpr.training.callbacks import Callback, metrics_file
from dpr.training.callbacks.metrics_file import MetricsFile, ReportPage
from dpr.training.settings import is_logged
from tests.helpers.jobs import verify
from tests.helpers.tiny import ListSource, make_samples, tiny_model
from tests.helpers.training import KilledAt, make_trainer

WHOLE = '{"step": 1, "eval/ünï": 0.5}\n{"step": 2, "eval/ünï": 0.4}\n'


def resumed_at(step: int) -> Any:
    return SimpleNamespace(ranks=Ranks(), progress=SimpleNamespace(step=step))


@pytest.mark.parametrize(
    "torn", [b"", b'{"step": 2, "tr', '{"step": 2, "ü'.encode()[:-1], b"\0" * 20, b"\xff\xfe", b"[]\n"]
)
def test_torn_and_later_lines_are_dropped_on_resuming(tmp_path: Path, torn: bytes) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(WHOLE.encode() + b'{"step": 3}\n' + torn)
    MetricsFile(file).on_train_begin(resumed_at(2))
    assert file.read_text(encoding="utf-8") == WHOLE


def test_a_line_longer_than_any_line_of_metrics_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(WHOLE + '{"step": 2, "eval/x": 0.1, "x": "' + "x" * MAX_LINE_BYTES + '"}\n')
    read = read_training(tmp_path)
    assert read is not None and len(read.validations) == 2
    assert "1 lines of metrics.jsonl are damaged" in read.notes[0]
    MetricsFile(file).on_train_begin(resumed_at(2))
    assert file.read_text() == WHOLE


def test_a_disk_that_refuses_it_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    file = tmp_path / "metrics.jsonl"
    file.write_text(WHOLE)
    monkeypatch.setattr(metrics_file, "durable_file", full)
    MetricsFile(file).on_train_begin(resumed_at(1))
    assert "No space left" in caplog.text and file.read_text() == WHOLE


DAMAGE: dict[str, Any] = {
    "has been cut to": lambda file: file.write_bytes(file.read_bytes()[:40]),
    "has been cut to 0": lambda file: file.unlink(),
    "content has changed since": lambda file: file.write_text(file.read_text().replace("1", "7", 1)),
}


def finished_run(folder: Path) -> Path:
    model = tiny_model(folder / "encoder", dtype=torch.float32)
    make_trainer(model, [ListSource(make_samples(16))], [], folder / "run", max_steps=2).train()
    return folder / "run"


@pytest.mark.parametrize("reported", DAMAGE)
def test_metrics_that_are_not_those_that_were_written_are_reported_everywhere(
    tmp_path: Path, reported: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = finished_run(tmp_path)
    DAMAGE[reported](run / "metrics.jsonl")
    assert verify([str(run)]) == 3
    assert f"metrics.jsonl: {reported}" in capsys.readouterr().out
    assert f"metrics.jsonl {reported}" in write_report(run).read_text()
    assert reported not in caplog.text
    finished_run(tmp_path)
    assert f"metrics.jsonl {reported}" in caplog.text


def test_a_short_run_logs_enough_lines_for_a_curve() -> None:
    for steps, lines in {1: 1, 10: 10, 40: 20, 64: 22, 200: 20, 5000: 50}.items():
        logged = [step for step in range(1, steps + 1) if is_logged(step, None, steps)]
        assert len(logged) == lines and logged[-1] == steps
    assert not any(is_logged(step, 0, 10) for step in range(1, 11))
    assert [step for step in range(1, 8) if is_logged(step, 5, 7)] == [5, 7], "as it was said"


def test_a_line_after_a_kill_is_that_of_the_undisturbed_run(tmp_path: Path) -> None:
    """A checkpoint lies between two log lines, and an update before it was skipped."""

    def lines(name: str, *callbacks: Callback) -> list[dict[str, Any]]:
        model = tiny_model(tmp_path / "encoder", dtype=torch.float32)
        sets = [ListSource(make_samples(16)), ListSource(make_samples(16, seed=4))]
        how = {"max_steps": 7, "save_every_steps": 2, "log_batch_step": 5, "num_train_epochs": 9}
        dev = [ListSource(make_samples(6))]
        run = make_trainer(model, sets, dev, tmp_path / name, SpoiltAt(2), *callbacks, **how)
        with suppress(KeyboardInterrupt):
            run.train()
        file = tmp_path / name / "metrics.jsonl"
        written = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [
            {key: value for key, value in line.items() if not key.startswith("perf/") or "padding" in key}
            for line in written
        ]

    whole = lines("whole")
    assert [line["step"] for line in whole if "train/loss" in line] == [5, 7]
    lines("killed", KilledAt(4))
    assert lines("killed") == whole


class SpoiltAt(Callback):
    """An update with a gradient that is none."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_global_batch(self, run: Any, questions: Any, global_batch: Any, batch: Any) -> None:
        if run.progress.step + 1 == self.step:
            self.hook = next(run.model.parameters()).register_hook(lambda gradient: gradient * torch.nan)

    def on_step_end(self, run: Any) -> None:
        if run.progress.step == self.step:
            self.hook.remove()


def test_every_file_of_a_run_is_compared_or_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model(tmp_path / "encoder", dtype=torch.float32)
    sets = [ListSource(make_samples(16))], [ListSource(make_samples(6))]
    make_trainer(model, *sets, tmp_path / "run", max_steps=2, eval_at_start=True).train()
    (tmp_path / "run" / "train.log").write_text("of another program")
    assert verify([str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("files without a checksum: train.log")
    for name in ("run.json", "verdict.json", "train.log"):
        file = tmp_path / "run" / name
        content = file.read_bytes()
        file.write_bytes(content[:9] + bytes([content[9] ^ 1]) + content[10:])
        assert verify([str(tmp_path / "run")]) == (0 if name == "train.log" else 3)
        assert any(name in line and "good" not in line for line in capsys.readouterr().out.splitlines())
        file.write_bytes(content)


def test_metrics_may_grow_after_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = finished_run(tmp_path)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "train/loss": 1.0}\n')
    assert verify([str(run)]) == 0
    assert "metrics.jsonl: good up to the last checkpoint" in capsys.readouterr().out
    (run / "run.json").write_text('{"last_checkpoint": "dpr_biencoder.step2"}')
    (run / "metrics.jsonl").write_text("")
    assert verify([str(run)]) == 0
    assert "files without a checksum" in capsys.readouterr().out


def trainer(*, is_main: bool = True, step: int = 1) -> Any:
    ranks = SimpleNamespace(is_main=is_main)
    return SimpleNamespace(ranks=ranks, progress=SimpleNamespace(step=step), last_step=2)


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
    page.on_save(trainer(step=2), tmp_path / "dpr.step2")
    assert "1 steps" in (tmp_path / "report.html").read_text(), "the end writes it"
    page.on_train_end(trainer(step=2))
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
    figures = ["4 steps", "best eval/nll_loss", "4711", torch.__version__]
    for words in (*figures, "Learning rate", "Gradient norm"):
        assert words in end
    assert str(tmp_path) not in end and "is missing" not in end
