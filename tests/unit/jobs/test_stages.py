"""Stages are run once, in order; what is done stays, what was interrupted goes on, and where something has
changed all is made again."""

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

from dpr.core.errors import ConfigError, InputError, StopRequested
from dpr.core.settings import Settings
from dpr.jobs.stages import RECORD, stages_in


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


def two(out: Path, job: Job, made_of: str = "one") -> None:
    """The stages a and b."""
    with stages_in(out, {"corpus": made_of}, first="a") as stages:
        for name in ("a", "b"):
            stages.run(name, "", job, Writing(str(out / name / "out.txt"), name), ["out.txt"])


def test_stages_are_run_once_and_again_where_something_has_changed(tmp_path: Path) -> None:
    job = Job()
    two(tmp_path, job)
    two(tmp_path, job)
    assert job.made == ["a", "b"]
    record = json.loads((tmp_path / "b" / RECORD).read_text())
    assert record["command"] == ["dpr", "write-text", f"out={tmp_path}/b/out.txt", "text=b"]
    (tmp_path / "b" / "old.txt").touch()
    two(tmp_path, job, "two")
    assert job.made == ["a", "b"] * 2
    assert not (tmp_path / "b" / "old.txt").exists()


def test_what_is_gone_is_made_again_and_what_reads_it(tmp_path: Path) -> None:
    job = Job()
    two(tmp_path, job)
    (tmp_path / "b" / "out.txt").unlink()
    two(tmp_path, job)
    assert job.made == ["a", "b", "b"]
    (tmp_path / "a" / "out.txt").unlink()
    two(tmp_path, job)
    assert job.made[3:] == ["a", "b"]


def test_a_failure_passes_and_the_same_command_goes_on(tmp_path: Path) -> None:
    job = Job()
    job.before = lambda: job.made and sys.exit(4)
    with pytest.raises(SystemExit):
        two(tmp_path, job)
    (tmp_path / "b" / "half.txt").touch()
    job.before = lambda: None
    two(tmp_path, job)
    assert job.made == ["a", "b"]
    assert (tmp_path / "b" / "half.txt").exists()


def test_a_job_that_does_not_make_what_it_should_is_not_done(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"other\.txt: was not written"),
        stages_in(tmp_path, {}, first="a") as stages,
    ):
        stages.run("a", "", Job(), Writing(str(tmp_path / "a" / "out.txt"), "x"), ["other.txt"])
    assert "outputs" not in json.loads((tmp_path / "a" / RECORD).read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_the_stage_and_the_same_command_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    handler = signal.getsignal(number)
    job = Job()

    def killed() -> None:
        if job.made:
            os.kill(os.getpid(), number)

    job.before = killed
    with pytest.raises(StopRequested, match=f"{number.name}. Rerun the same command to resume"):
        two(tmp_path, job)
    assert signal.getsignal(number) == handler
    job.before = lambda: None
    two(tmp_path, job)
    assert job.made == ["a", "b"]


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"holds other files \(thesis\.txt\)"):
        two(tmp_path, Job())
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / RECORD).write_text('{"format": 1}')
    with pytest.raises(InputError, match="is not the record of a stage"):
        two(tmp_path, Job())
    assert (tmp_path / "thesis.txt").exists()
