"""Stages are run once, in order; what is done stays, what does not match is made again, what was interrupted
goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dpr.core.errors import CheckpointError, ConfigError, InputError, StageError, StopRequested
from dpr.core.settings import Settings
from dpr.jobs import stages as module
from dpr.jobs.stages import RECORD, stages_in, trained_files

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@dataclass
class Writing(Settings):
    """Writes ``text`` into the file ``out``."""

    out: str = ""
    text: str = ""


class Job(ModuleType):
    """A module of ``dpr/jobs`` that remembers what it has made."""

    def __init__(self) -> None:
        super().__init__("dpr.jobs.write_text")
        self.made: list[str] = []
        self.before: Callable[[], Any] = lambda: None

    def run(self, config: Writing) -> None:
        self.before()
        Path(config.out).write_text(config.text)
        self.made.append(config.text)


def two(
    out: Path, job: Job, first: str = "x", second: str = "y", files: dict[str, Any] | None = None
) -> None:
    """The stages a, and b that reads it."""
    with stages_in(out, first="a") as stages:
        for name, text, after in (("a", first, []), ("b", second, ["a"])):
            config = Writing(str(out / name / "out.txt"), text)
            settings = {"text": text}
            stages.run(
                name, text, job, config, outputs=["out.txt"], settings=settings, files=files, after=after
            )


def test_stages_are_run_once_and_again_where_what_they_are_made_of_has_changed(tmp_path: Path) -> None:
    job, given, out = Job(), tmp_path / "given.txt", tmp_path / "run"
    given.write_text("one")
    files = {"corpus": [given]}
    two(out, job, files=files)
    assert job.made == ["x", "y"]
    record = json.loads((out / "b" / RECORD).read_text())
    assert record["command"] == ["dpr", "write-text", f"out={out}/b/out.txt", "text=y"]
    os.utime(given, (1, 1))
    two(out, job, files=files)
    assert job.made == ["x", "y"]
    two(out, job, second="w", files=files)  # a setting
    assert job.made == ["x", "y", "w"]
    given.write_text("two")  # a file
    two(out, job, second="w", files=files)
    assert job.made == ["x", "y", "w", "x", "w"]
    two(out, job, first="z", second="w", files=files)  # what a has made
    assert job.made[5:] == ["z", "w"]
    given.unlink()
    with pytest.raises(InputError, match=r"given\.txt: cannot be read"):
        two(out, job, files=files)


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_text("w")])
def test_what_is_gone_or_damaged_is_made_again(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    job = Job()
    two(tmp_path, job)
    damage(tmp_path / "a" / "out.txt")
    two(tmp_path, job)
    assert job.made == ["x", "y", "x"]  # b has read the same


def test_a_failure_passes_and_the_same_command_goes_on(tmp_path: Path) -> None:
    job = Job()
    job.before = lambda: job.made and sys.exit(4)
    with pytest.raises(SystemExit):
        two(tmp_path, job)
    job.before = lambda: None
    two(tmp_path, job)
    assert job.made == ["x", "y"]


def test_a_job_that_does_not_make_what_it_should_is_not_done(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"other\.txt: was not written"),
        stages_in(tmp_path, first="a") as stages,
    ):
        stages.run("a", "", Job(), Writing(str(tmp_path / "a" / "out.txt"), "x"), outputs=["other.txt"])
    assert "outputs" not in json.loads((tmp_path / "a" / RECORD).read_text())


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_stage_and_the_same_command_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    handlers = [signal.getsignal(each) for each in SIGNALS]
    job = Job()

    def killed() -> None:
        if job.made:
            os.kill(os.getpid(), number)

    job.before = killed
    with pytest.raises(StopRequested, match=f"{number.name}. Rerun the same command to resume"):
        two(tmp_path, job)
    assert [signal.getsignal(each) for each in SIGNALS] == handlers
    job.before = lambda: None
    two(tmp_path, job)
    assert job.made == ["x", "y"]


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"holds other files \(thesis\.txt\)"):
        two(tmp_path, Job())
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / RECORD).write_text('{"format": 1}')
    with pytest.raises(InputError, match="is not the record of a stage"):
        two(tmp_path, Job())


def test_nothing_outside_is_removed_that_a_run_names(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"best_checkpoint": "../precious"}')
    with pytest.raises(CheckpointError, match="expected a file or folder inside its own"):
        trained_files(tmp_path)


def test_torchrun_starts_what_several_processes_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    program = "import sys; sys.exit(3)"
    popen = module.subprocess.Popen

    def started(command: list[str], **options: Any) -> Any:
        ran.append(command)
        return popen([sys.executable, "-c", program], **options)

    monkeypatch.setattr(module.subprocess, "Popen", started)
    with (
        pytest.raises(StageError, match="a ended with exit code 3") as error,
        stages_in(tmp_path, first="a") as stages,
    ):
        stages.run("a", "", Job(), Writing(text="x"), outputs=["out.txt"], processes=2)
    assert error.value.exit_code == 3
    assert ran[0][1:] == [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *("-m", "dpr", "write-text", "text=x"),
    ]
