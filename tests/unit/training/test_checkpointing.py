"""The folder of a run: what a kill leaves there stops no rerun, and of several starts at once one gets it."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import CheckpointError, DprError
from dpr.storage import durable
from dpr.training.checkpointing import CheckpointFolder


class Killed(BaseException):
    """Stands for SIGKILL: nothing tidies up after it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Dies at the ``number``-th file operation (from 0)."""
    calls = [0]

    def counted(name: str, module: object) -> None:
        real = getattr(module, name)

        def replaced(*arguments: object, **options: object) -> object:
            calls[0] += 1
            if calls[0] > number:
                raise Killed
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, replaced)

    for name in ("open", "rename", "replace", "mkdir", "rmdir", "unlink"):
        counted(name, os)
    counted("rmtree", durable.shutil)


def test_a_kill_at_any_moment_of_the_start_does_not_stop_the_next_start(tmp_path: Path) -> None:
    for number in range(40):
        folder = tmp_path / f"run-{number}"
        first = CheckpointFolder(folder)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, number)
            try:
                first.prepare()
                done = True
            except Killed:
                done = False
        again = CheckpointFolder(folder)
        again.prepare()
        again.lock.release()
        assert {path.name for path in folder.iterdir()} <= {"run.lock"}
        if done:
            break
    assert 1 < number < 39


def start_and_tell(folder: Path, together: Any, reported: Any) -> None:
    checkpoints = CheckpointFolder(folder)
    together.wait()
    try:
        checkpoints.prepare()
        reported.put("")
    except DprError as error:
        reported.put(str(error) if isinstance(error, CheckpointError) else repr(error))
    together.wait()  # none releases the lock before all have asked for it


def test_of_several_starts_at_once_all_but_one_name_the_other_run(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    together, reported = context.Barrier(4), context.Queue()
    processes = [
        context.Process(target=start_and_tell, args=(tmp_path / "run", together, reported)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    messages = sorted(reported.get() for _ in processes)
    for process in processes:
        process.join()
    assert messages[0] == ""
    assert all("another run is writing here" in message for message in messages[1:]), messages
