"""One run to a folder."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from dpr.storage import locks
from dpr.storage.leftovers import this_process
from dpr.storage.locks import LOCK_FILE, STALE_AFTER_S, locked
from tests.faults.conftest import Trial, fault
from tests.faults.runs import Workshop, final_hash
from tests.helpers.serving import wait_until

REFUSED = 3


@fault(
    "A19",
    "a second run starts in the folder of a first, or both at once",
    "one continues, the other is refused with exit 3 and the name of the first",
    trials=10,
)
def test_two_runs_in_one_folder(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    slow = [("slow_steps", {"seconds": 0.5})]
    first = workshop.start(trial.output_dir, injections=slow)
    if trial.number % 2 == 0:
        first.wait_for("step 1/")
    second = workshop.start(trial.output_dir, injections=slow)
    runs = {tuple(run.wait()): run for run in (first, second)}
    assert runs.keys() == {(0, 0), (REFUSED, REFUSED)}, first.text + second.text
    refused, good = runs[REFUSED, REFUSED], runs[0, 0]
    assert f"another run is writing here: process {good.pids[0]} on " in refused.rank_text(0), refused.text
    assert LOCK_FILE in refused.rank_text(0)
    assert final_hash(trial.output_dir) == undisturbed[2]
    assert not (trial.output_dir / LOCK_FILE).exists()


@fault(
    "A19",
    "the lock of processes that are gone; their number taken by another",
    "taken over with a warning; equal weights",
    trials=5,
)
def test_a_stale_lock(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    trial.output_dir.mkdir()
    lock = trial.output_dir / LOCK_FILE
    if trial.number % 5 == 0:  # killed
        run = workshop.start(trial.output_dir)
        run.wait_for("step 2/")
        run.kill()
        assert lock.exists()
    else:
        mine = this_process()
        holder = {
            1: {"host": mine.host, "pid": os.getppid(), "start": 5},  # a number used again
            2: {"host": "elsewhere", "pid": 1, "start": 5},  # another machine, long silent
            3: {"host": mine.host, "pid": 2**30, "start": 5},
            4: {"host": "elsewhere"},  # damaged
        }[trial.number % 5]
        lock.write_text(json.dumps({"token": "x", "processes": [holder]}))
        old = time.time() - STALE_AFTER_S - 5
        os.utime(lock, (old, old))
    run = workshop.finish(trial.output_dir)
    assert "taking it over" in run.rank_text(0)
    assert final_hash(trial.output_dir) == undisturbed[2]
    assert not lock.exists()


@fault(
    "A19",
    "a lock of another machine that is still touched",
    "refused with exit 3; starts once the file is removed",
    trials=1,
    fast=0,
)
def test_a_run_on_another_machine(trial: Trial, workshop: Workshop) -> None:
    trial.output_dir.mkdir()
    lock = trial.output_dir / LOCK_FILE
    lock.write_text(json.dumps({"token": "x", "processes": [{"host": "elsewhere", "pid": 1, "start": 5}]}))
    run = workshop.run(trial.output_dir)
    assert run.wait() == [REFUSED, REFUSED]
    assert "process 1 on elsewhere (rank 0)" in run.rank_text(0)
    lock.unlink()
    workshop.finish(trial.output_dir)


@fault(
    "A19",
    "rank 0 is gone, another rank of the earlier start lives",
    "refused with exit 3, the rank named; equal weights after its end",
    trials=3,
    fast=0,
)
def test_a_rank_that_was_left_over(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    first = workshop.start(trial.output_dir)
    first.wait_for("step 2/")
    first.signal(signal.SIGSTOP, ranks=[1])
    first.signal(signal.SIGKILL, ranks=[0])
    time.sleep(0.2)
    first.poll()  # rank 0 is taken off the list of processes
    second = workshop.run(trial.output_dir)
    assert second.wait() == [REFUSED, REFUSED], second.text
    assert f"process {first.pids[1]} on " in second.rank_text(0) and "(rank 1, since " in second.rank_text(0)
    first.kill()
    assert workshop.finished_hash(trial.output_dir) == undisturbed[2]


def test_a_lock_shows_other_machines_that_its_holder_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "TOUCH_EVERY_S", 0.01)
    with locked(tmp_path):
        os.utime(tmp_path / LOCK_FILE, (0, 0))
        wait_until(lambda: (tmp_path / LOCK_FILE).stat().st_mtime > 0)
