"""Stages run once, in order; interrupted ones continue, changed ones are made again."""

import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpr.adaptation import stages as module
from dpr.adaptation.choices import write_search
from dpr.adaptation.stages import RECORD, stages_in
from dpr.core.errors import ConfigError, InputError, OutputError, StageError, StopRequested
from dpr.core.settings import Settings


@dataclass
class Writing(Settings):
    """Writes ``text`` into the file ``out``."""

    out: str = ""
    text: str = ""


class Job:
    """The command ``write-text``, which remembers what it has made."""

    def __init__(self) -> None:
        self.jobs = {"write-text": self.run}
        self.made: list[str] = []
        self.before: Callable[[], Any] = lambda: None

    def run(self, config: Writing) -> None:
        self.before()
        Path(config.out).write_text(config.text)
        self.made.append(config.text)


def two(out: Path, job: Job, made_of: str = "one") -> None:
    with stages_in(out, {"corpus": made_of}, first="a", jobs=job.jobs) as stages:
        for name in ("a", "b"):
            stages.run(name, "", "write-text", Writing(str(out / name / "out.txt"), name), ["out.txt"])


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
    shutil.rmtree(tmp_path / "a")
    two(tmp_path, job)
    assert job.made[5:] == ["a", "b"]


def test_a_job_that_does_not_make_what_it_should_is_not_done(tmp_path: Path) -> None:
    job = Job()
    with (
        pytest.raises(InputError, match=r"other\.txt: was not written"),
        stages_in(tmp_path, {}, first="a", jobs=job.jobs) as stages,
    ):
        stages.run("a", "", "write-text", Writing(str(tmp_path / "a" / "out.txt"), "x"), ["other.txt"])
    assert "outputs" not in json.loads((tmp_path / "a" / RECORD).read_text())


@pytest.mark.parametrize("how", [None, signal.SIGTERM, signal.SIGINT])
def test_a_failure_or_a_signal_ends_the_stage_and_the_same_command_goes_on(
    tmp_path: Path, how: signal.Signals | None
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    job = Job()

    def ended() -> None:
        if not job.made:
            return
        if how is None:
            sys.exit(4)
        os.kill(os.getpid(), how)

    job.before = ended
    expected = f"{how.name}. Rerun the same command to resume" if how else "4"
    with pytest.raises(StopRequested if how else SystemExit, match=expected):
        two(tmp_path, job)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    (tmp_path / "b" / "half.txt").touch()
    job.before = lambda: None
    two(tmp_path, job)
    assert job.made == ["a", "b"]
    assert (tmp_path / "b" / "half.txt").exists()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were started; what runs in place of them is added by the test, as the first."""
    ran: list[list[str]] = []
    popen = module.subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        ran.append(command)
        return popen([sys.executable, "-c", ran[0][0]], **options)

    monkeypatch.setattr(module.subprocess, "Popen", start)
    return ran


def test_torchrun_starts_what_several_processes_do(tmp_path: Path, started: list[list[str]]) -> None:
    started.append(["import sys; sys.exit(3)"])
    with (
        pytest.raises(StageError, match="a ended with exit code 3") as error,
        stages_in(tmp_path, {}, first="a", jobs={}) as stages,
    ):
        stages.run("a", "", "write-text", Writing(text="x"), ["out.txt"], processes=2)
    assert error.value.exit_code == 3
    assert started[1][1:] == [
        *("-c", module._TORCHRUN, "--standalone", "--nproc-per-node=2"),
        *("-m", "dpr", "write-text", "text=x"),
    ]


def test_a_signal_is_passed_on_to_several_processes(tmp_path: Path, started: list[list[str]]) -> None:
    told = tmp_path / "told"
    wait = (
        "import os, pathlib, signal, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(told)!r}).touch(), os._exit(0)))\n"
        "os.kill(os.getppid(), signal.SIGUSR1)\n"
        "time.sleep(60)"
    )
    started.append([wait])
    with (
        pytest.raises(StopRequested, match=r"SIGUSR1\. Rerun the same command to resume"),
        stages_in(tmp_path / "run", {}, first="a", jobs={}) as stages,
    ):
        stages.run("a", "", "write-text", Writing(text="x"), ["out.txt"], processes=2)
    assert told.exists()


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"holds other files \(thesis\.txt\)"):
        two(tmp_path, Job())
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_python_swallows_stops_before_the_next_stage(tmp_path: Path) -> None:
    class Interrupted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    job = Job()
    job.before = Interrupted
    with pytest.raises(StopRequested, match="Rerun the same command to resume"):
        two(tmp_path, job)
    assert job.made == ["a"]
    job.before = lambda: None
    two(tmp_path, job)
    assert job.made == ["a", "b"]


def test_only_the_stages_of_the_folder_itself_are_made_again(tmp_path: Path) -> None:
    job = Job()
    two(tmp_path, job)
    two(tmp_path / "other", job)
    (tmp_path / "b").rename(tmp_path / "b-kept")
    two(tmp_path, job, "two")
    for kept in ("other/a", "other/b", "b-kept"):
        assert (tmp_path / kept / "out.txt").exists(), kept
    with pytest.raises(ConfigError, match=r"is inside .*/a, a stage of .* that may be rerun"):
        two(tmp_path / "a" / "mine", job)


def test_a_stage_is_not_made_in_a_folder_of_something_else(tmp_path: Path) -> None:
    job = Job()
    for name in ("a", "b"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").touch()
        with pytest.raises(InputError, match=rf"{name}: holds other files \(mine.txt\)"):
            two(tmp_path, job)
        assert [path.name for path in (tmp_path / name).iterdir()] == ["mine.txt"]
        (tmp_path / name / "mine.txt").rename(tmp_path / name / f"{RECORD}.sha256")  # all that a kill left
        two(tmp_path, job)
    for damaged in ('{"format"', '{"format": 1}'):
        (tmp_path / "b" / RECORD).write_text(damaged)
        with pytest.raises(InputError, match=r"is not the record of a stage; remove .*/b to run the stage"):
            two(tmp_path, job)


def test_a_full_disk_under_the_index_of_words_is_said_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "1", "text": "some words"}\n')

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        write_search(tmp_path, corpus, None)
    monkeypatch.undo()
    corpus.write_text('{"_id": "1", "text": "?"}\n')
    with pytest.raises(InputError, match="no passage holds a word"):
        write_search(tmp_path, corpus, None)
