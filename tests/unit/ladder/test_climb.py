"""Stages are run once, in order; what is done stays, what does not match is refused, what was interrupted is
resumed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import InputError, StageError, StopRequested
from dpr.jobs.ladder import climb as module
from dpr.jobs.ladder.climb import climb
from dpr.jobs.ladder.stages import RECORD, Stage
from dpr.storage.durable import read_json

WRITE = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2]); print('made', sys.argv[2])"


@pytest.fixture(autouse=True)
def any_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are Python programs here, in place of the arguments of ``dpr``."""
    monkeypatch.setattr(
        module, "python_command", lambda arguments, processes=1: [sys.executable, "-c", *arguments]
    )


def stage(
    folder: Path,
    name: str,
    text: str = "x",
    *,
    after: Sequence[str] = (),
    program: str = WRITE,
    **options: Any,
) -> Stage:
    target = folder / name / "out.txt"
    defaults: dict[str, Any] = {"settings": {"text": text}, "outputs": lambda: ["out.txt"]}
    return Stage(
        name=name,
        folder=folder / name,
        what=f"writing {text}",
        command=lambda: [program, str(target), text],
        after=after,
        **{**defaults, **options},
    )


def two(folder: Path, first: str = "x", second: str = "y", **options: Any) -> list[Stage]:
    return [stage(folder, "a", first, **options), stage(folder, "b", second, after=["a"], **options)]


def files(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()
    }


def test_stages_are_run_in_order_and_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    climb(two(tmp_path), tmp_path)
    assert capsys.readouterr().out.splitlines() == ["made x", "made y"]
    assert "made y" in (tmp_path / "b" / "log.txt").read_text()
    before = files(tmp_path)
    climb(two(tmp_path), tmp_path)
    assert capsys.readouterr().out == ""
    assert files(tmp_path) == before


def test_what_was_made_with_other_settings_is_made_again_and_so_is_what_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    climb(two(tmp_path), tmp_path)
    climb(two(tmp_path, first="z"), tmp_path)
    assert capsys.readouterr().out.splitlines() == ["made x", "made y", "made z", "made y"]
    climb(two(tmp_path, first="z", second="w"), tmp_path)
    assert capsys.readouterr().out.splitlines() == ["made w"]


def test_files_from_outside_count_by_their_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, run = tmp_path / "given.txt", tmp_path / "run"
    given.write_text("one")
    stages = [stage(run, "a", inputs={"corpus": [given]})]
    climb(stages, run)
    os.utime(given, (1, 1))
    climb(stages, run)
    assert capsys.readouterr().out.splitlines() == ["made x"]
    given.write_text("two")
    climb(stages, run)
    assert capsys.readouterr().out.splitlines() == ["made x"]
    given.unlink()
    with pytest.raises(InputError, match=r"given\.txt: cannot be read"):
        climb(stages, run)


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


def test_what_is_gone_is_made_again_where_somebody_needs_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    climb(two(tmp_path), tmp_path)
    (tmp_path / "a" / "out.txt").unlink()
    climb(two(tmp_path), tmp_path)
    assert "a: already done; out.txt is missing, but no later stage needs it" in caplog.text
    (tmp_path / "b" / "out.txt").unlink()
    climb(two(tmp_path), tmp_path)
    assert "running a again: out.txt is missing" in caplog.text
    assert capsys.readouterr().out.splitlines() == ["made x", "made y", "made x", "made y"]
    (tmp_path / "a" / "out.txt").unlink()
    climb(two(tmp_path, is_training=True), tmp_path)
    assert capsys.readouterr().out.splitlines() == ["made x"]


def test_a_failure_ends_with_its_exit_code_and_the_same_command_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = [stage(tmp_path, "a"), stage(tmp_path, "b", "y", after=["a"], program="raise SystemExit(4)")]
    with pytest.raises(StageError, match="b ended with exit code 4") as error:
        climb(broken, tmp_path)
    assert error.value.exit_code == 4
    climb(two(tmp_path), tmp_path)
    assert capsys.readouterr().out.splitlines() == ["made x", "made y"]


def test_a_command_that_does_not_make_what_it_should_is_not_done(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"out\.txt: was not written"):
        climb([stage(tmp_path, "a", program="pass")], tmp_path)
    assert "outputs" not in read_json(tmp_path / "a" / RECORD)


def when_ready(file: Path, number: int) -> None:
    """Sends this process a signal as soon as the command has written the file."""

    def send() -> None:
        deadline = time.monotonic() + 20
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()


WAIT = (
    "import signal, sys, pathlib, time\n"
    "signal.signal(signal.{name}, lambda *_: {action})\n"
    "pathlib.Path(sys.argv[1] + '.ready').touch()\n"
    "time.sleep(20)\n"
)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_is_passed_on_and_what_was_interrupted_is_resumed(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    when_ready(tmp_path / "a" / "out.txt.ready", getattr(signal, name))
    with pytest.raises(StopRequested, match=f"{name}; a has stopped. Rerun the same command") as error:
        climb([stage(tmp_path, "a", program=WAIT.format(name=name, action="sys.exit(75)"))], tmp_path)
    assert error.value.exit_code == 75
    assert [
        signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    ] == handlers
    climb(two(tmp_path), tmp_path)
    assert capsys.readouterr().out.splitlines() == ["made x", "made y"]
    assert read_json(tmp_path / "a" / RECORD)["seconds"] < 15


def test_a_stage_that_ends_well_in_spite_of_a_signal_is_done_and_the_next_is_not_started(
    tmp_path: Path,
) -> None:
    program = WAIT.format(name="SIGTERM", action="(pathlib.Path(sys.argv[1]).write_text('x'), sys.exit(0))")
    when_ready(tmp_path / "a" / "out.txt.ready", signal.SIGTERM)
    with pytest.raises(StopRequested, match="SIGTERM before b"):
        climb([stage(tmp_path, "a", program=program), stage(tmp_path, "b", after=["a"])], tmp_path)
    assert (tmp_path / "a" / "out.txt").exists()
    assert not (tmp_path / "b").exists()


def test_a_stage_that_was_asked_to_stop_by_others_stops_the_ladder(tmp_path: Path) -> None:
    with pytest.raises(StopRequested):
        climb([stage(tmp_path, "a", program="raise SystemExit(75)")], tmp_path)


def test_torchrun_hides_the_exit_code_but_the_run_says_that_it_was_asked(tmp_path: Path) -> None:
    run = tmp_path / "a" / "run.json"
    note = (
        f"import pathlib, json; pathlib.Path({str(run)!r}).write_text(json.dumps({{'stopped_at_step': 3}}));"
        " raise SystemExit(1)"
    )
    with pytest.raises(StopRequested):
        climb([stage(tmp_path, "a", program=note, processes=2, is_training=True)], tmp_path)
    # An old note does not explain a later failure.
    with pytest.raises(StageError):
        climb([stage(tmp_path, "a", program="raise SystemExit(1)", processes=2, is_training=True)], tmp_path)


def test_output_is_passed_on_while_the_command_runs_and_kept_over_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    folder, ready = tmp_path / "a", tmp_path / "a" / "out.txt.ready"
    program = (
        "import sys, time, pathlib\nprint('caf\\u00e9',"
        " flush=True)\nsys.stderr.write('loud\\n')\npathlib.Path(sys.argv[1] + '.ready').touch()\nwhile"
        " pathlib.Path(sys.argv[1] + '.ready').exists(): time.sleep(0.01)\n"
    )

    def look() -> None:
        while not ready.exists() or "loud" not in (folder / "log.txt").read_text():
            time.sleep(0.01)
        seen.append((folder / "log.txt").read_text())
        ready.unlink()

    watcher = threading.Thread(target=look)
    watcher.start()
    with pytest.raises(InputError):
        climb([stage(tmp_path, "a", program=program)], tmp_path)
    watcher.join()
    assert "caf\u00e9" in seen[0]
    climb([stage(tmp_path, "a")], tmp_path)
    kept = [line for line in (folder / "log.txt").read_text().splitlines() if line[:4] in ("made", "loud")]
    assert kept == ["loud", "made x"]
