"""The same under torch's own launchers: their signals, their restarts, their deaths."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Case, Trial, fault
from tests.faults.runs import REPOSITORY, Workshop, arguments, environment, final_hash, free_port, saved_steps
from tests.helpers.patience import patient
from tests.helpers.processes import launcher_environment

WITH_INJECTIONS = str(REPOSITORY / "tests" / "faults" / "with_injections.py")


@contextmanager
def launched(
    workshop: Workshop, output_dir: Path, *launcher: str, injections: str = "[]", **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A launcher of two ranks at work, and the file of its messages; ended afterwards whatever happens."""
    log = output_dir.with_suffix(".log")
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", *launcher, WITH_INJECTIONS, *arguments(workshop.folder, output_dir)],
            env=os.environ | environment(workshop.folder) | {"DPR_TEST_INJECTIONS": injections} | variables,
            cwd=REPOSITORY,
            stdout=out,
            stderr=out,
        )
    try:
        yield process, log
    finally:
        for pid in [*workers_of(process.pid), process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()


def torchrun(*options: str) -> list[str]:
    return ["torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}", *options]


def workers_of(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(child) for child in file.read().split()]
    except OSError:
        return []
    return [grandchild for child in children for grandchild in [*workers_of(child), child]]


def living(pids: list[int], *, within_s: float) -> list[int]:
    """Those that live on for so long."""
    deadline = time.monotonic() + within_s
    while (left := [pid for pid in pids if os.path.exists(f"/proc/{pid}")]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + patient(timeout_s)
    while not re.search(pattern, log.read_text()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


@pytest.mark.fault(
    "A4",
    "signals to torchrun and torch.distributed.launch",
    "saved within 15 s, stopped_at_step in run.json; equal weights",
)
def test_a_launcher_is_asked_to_stop(case: Case, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    wants = "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    ways = [(torchrun(), signal.SIGTERM), (torchrun(), signal.SIGINT), (torchrun(wants), signal.SIGUSR1)]
    ways += [
        (["torch.distributed.launch", "--nproc-per-node=2", f"--master-port={free_port()}"], number)
        for number in (signal.SIGTERM, signal.SIGINT)
    ]
    ways += [(torchrun(wants), signal.SIGTERM)]
    for trial in case.trials(len(ways), fast=0):
        with trial:
            launcher, number = ways[trial.number]
            slow = json.dumps([["slow_steps", {"seconds": 0.3}]])
            with launched(workshop, trial.output_dir, *launcher, injections=slow) as (process, log):
                wait_for(log, r"step [23]/", process)
                start = time.monotonic()
                process.send_signal(number)
                process.wait(timeout=patient(30))
                assert time.monotonic() - start < patient(15)
                assert f"stopped: {number.name}; saved at step" in log.read_text(), log.read_text()
            (newest, *_) = saved_steps(trial.output_dir)
            assert json.loads((trial.output_dir / "run.json").read_text())["stopped_at_step"] == newest
            assert workshop.finished_hash(trial.output_dir) == undisturbed[2]


@fault(
    "A2",
    "SIGKILL of one rank under torchrun --max-restarts 2",
    "restarted in place with the store variable of the recipe; equal weights",
    trials=10,
    fast=0,
)
def test_restart_in_place(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    step, victim = trial.random.randint(3, 11), trial.number % 2
    injections = json.dumps([["at_step", {"step": step, "on_rank": victim, "what": "dies"}]])
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    recipe = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    with launched(workshop, trial.output_dir, *recipe, injections=injections, **variables) as (process, log):
        assert process.wait(timeout=90) == 0, log.read_text()
    assert log.read_text().count(f"rank {victim} dies") == 1
    assert final_hash(trial.output_dir) == undisturbed[2]


@fault(
    "A19",
    "SIGKILL of the launcher alone",
    "its ranks notice, save and end; a second start meanwhile is refused; equal weights",
    trials=3,
    fast=0,
)
def test_the_launcher_is_killed(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    slow = json.dumps([["slow_steps", {"seconds": patient(4 / 3)}]])  # a second start takes less
    with launched(workshop, trial.output_dir, *torchrun(), injections=slow) as (process, log):
        wait_for(log, r"step 1/", process)
        ranks = workers_of(process.pid)
        process.kill()
        process.wait()
        second = workshop.run(trial.output_dir)
        assert second.wait() == [3, 3], second.text
        assert "another run is writing here" in second.rank_text(0)
        assert not living(ranks, within_s=20)
        assert "stopped: the launcher has ended; saved at step" in log.read_text()
    assert workshop.finished_hash(trial.output_dir) == undisturbed[2]


@fault(
    "A3",
    "SIGSTOP of one rank under torchrun",
    "all ended by launcher and timeout, no process left after 60 s; equal weights",
    trials=2,
    fast=0,
)
def test_a_hang_under_torchrun(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    injections = json.dumps([["at_step", {"step": 5, "on_rank": 1, "what": "hangs"}]])
    with launched(workshop, trial.output_dir, *torchrun(), injections=injections) as (process, log):
        wait_for(log, "rank 1 hangs", process)
        ranks = workers_of(process.pid)
        assert process.wait(timeout=patient(60)) != 0
        # a rank's data loaders look for their parent every few seconds
        assert not living(ranks, within_s=60)
    assert "error: rank 1 of 2 died or stopped answering, at step 5" in log.read_text()
    assert workshop.finished_hash(trial.output_dir) == undisturbed[2]


@fault(
    "A25",
    "nothing: a group of two trains and leaves",
    "exit 0 on both ranks; equal weights",
    trials=40,
    fast=0,
)
def test_a_group_leaves(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    port = free_port()
    command = [sys.executable, WITH_INJECTIONS, *arguments(workshop.folder, trial.output_dir)]
    variables = os.environ | environment(workshop.folder) | {"DPR_TEST_INJECTIONS": "[]"}
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen(
            command, env=variables | launcher_environment(rank, 2, port), cwd=REPOSITORY, **pipes
        )
        for rank in range(2)
    ]
    reported = [rank.communicate(timeout=patient(60))[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], reported
    assert "terminate called" not in "".join(reported)
    assert final_hash(trial.output_dir) == undisturbed[2]
