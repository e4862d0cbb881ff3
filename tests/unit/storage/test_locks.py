"""Who holds the lock of a folder, and when it is released; tests/faults has several processes."""

import gc
import json
import os
from pathlib import Path

import pytest

from dpr.core.errors import CheckpointError
from dpr.storage.leftovers import ProcessName, this_process
from dpr.storage.locks import LOCK_FILE, RunLock


def locked_by_another(folder: Path) -> RunLock:
    """A lock in the name of this process's parent, which lives."""
    lock = RunLock(folder)
    parent = os.getppid()
    start = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19])
    lock.acquire([ProcessName(this_process().host, parent, start)])
    return lock


def test_a_living_process_keeps_others_out(tmp_path: Path) -> None:
    lock = locked_by_another(tmp_path)
    with pytest.raises(CheckpointError, match=rf"process {os.getppid()} on .*rank 0.*remove .*{LOCK_FILE}"):
        RunLock(tmp_path).acquire([this_process()], wait_s=0.3)
    lock.release()
    RunLock(tmp_path).acquire([this_process()], wait_s=0.3)


def test_it_is_given_back_when_nobody_has_it_any_more(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.acquire([this_process()])
    assert (tmp_path / LOCK_FILE).exists()
    del lock
    gc.collect()
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_fork_does_not_give_it_back(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.acquire([this_process()])
    if (pid := os.fork()) == 0:
        lock.release()
        os._exit(0)
    os.waitpid(pid, 0)
    assert lock.is_ours()


def test_only_the_holder_gives_it_back(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.acquire([this_process()])
    other = RunLock(tmp_path)
    other.acquire([this_process()])  # the same process may
    assert not lock.is_ours()
    lock.release()
    assert other.is_ours()


def test_the_file_names_the_processes(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.acquire([this_process(), ProcessName("elsewhere", 5, 6)])
    written = json.loads((tmp_path / LOCK_FILE).read_text())["processes"]
    assert written[0]["pid"] == os.getpid()
    assert written[1] == {"host": "elsewhere", "pid": 5, "start": 6}
