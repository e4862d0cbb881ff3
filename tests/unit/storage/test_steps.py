"""A folder that is written in steps keeps what was committed, wherever it is cut off, at a cost of a step
that does not grow with them."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import CheckpointError, InputError
from dpr.storage import steps as steps_module
from dpr.storage.durable import verify_folder
from dpr.storage.leftovers import this_process
from dpr.storage.run_lock import RunLock, lock_of
from dpr.storage.steps import Steps, StepsInOrder, steps_in_order

MADE_OF = {"of": [1]}


def write_steps(steps: StepsInOrder, numbers: range) -> None:
    """Each step writes a file of its own and adds to one that all have."""
    for number in numbers:
        for name, text in ((f"parts/{number}", f"part {number}"), ("all", str(number % 10))):
            with steps.appended(name) as out:
                out.write(text.encode())
        steps.commit()


def files_of(folder: Path) -> dict[str, bytes]:
    names = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    return {name: content for name, content in names.items() if not name.endswith(".json")}


def test_a_step_costs_the_same_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    steps = StepsInOrder(tmp_path / "x", MADE_OF)
    monkeypatch.setattr(steps_module, "flush", flushed.append)
    for number in range(100, 150):
        write_steps(steps, range(number, number + 1))
    assert len(flushed) == 50 * 2, "the folder and that of the parts"
    first, last = (tmp_path / "x" / f"step-{number:05d}.json" for number in (0, 49))
    assert last.stat().st_size <= first.stat().st_size + 2


def test_cut_off_anywhere_it_continues_after_the_last_whole_step(tmp_path: Path) -> None:
    write_steps(StepsInOrder(tmp_path / "whole", MADE_OF), range(5))
    write_steps(StepsInOrder(tmp_path / "x", MADE_OF), range(2))
    # as a second process
    write_steps(StepsInOrder(tmp_path / "x", MADE_OF), range(2, 4))
    whole = (tmp_path / "x" / "step-00003.json").read_bytes()
    for number, cut in ((3, 0), (3, 1), (3, len(whole) // 2), (3, len(whole)), (1, 5), (0, 0)):
        copy = tmp_path / f"cut-{number}-{cut}"
        shutil.copytree(tmp_path / "x", copy)
        (copy / f"step-{number:05d}.json").write_bytes(whole[:cut])
        steps = StepsInOrder(copy, MADE_OF)
        assert steps.num_done == (4 if cut == len(whole) else number)
        found = files_of(copy)
        assert len(found.pop("all", b"")) == len(found) == steps.num_done
        write_steps(steps, range(steps.num_done, 5))
        assert files_of(copy) == files_of(tmp_path / "whole")
        assert StepsInOrder(copy, MADE_OF).num_done == 5
        shutil.rmtree(copy)


def test_a_claim_or_a_proof_of_another_shape_is_refused_or_no_proof(tmp_path: Path) -> None:
    write_steps(StepsInOrder(tmp_path / "x", MADE_OF), range(1))
    for text in ("[]", "{}", json.dumps({"files": {"all": 1}})):
        (tmp_path / "x" / "step-00001.json").write_text(text)
        assert StepsInOrder(tmp_path / "x", MADE_OF).num_done == 1
    with pytest.raises(
        InputError, match=r"holds unfinished output with of=\[1\], this run has \[2\]; choose another name"
    ):
        StepsInOrder(tmp_path / "x", {"of": [2]})
    for text, message in (("[]", "does not say what its output is made of"), ("x", "not JSON")):
        (tmp_path / "x" / "unfinished.json").write_text(text)
        with pytest.raises(InputError, match=message):
            StepsInOrder(tmp_path / "x", MADE_OF)


class Parts(Steps):
    """Steps of two files each."""

    def do(self, number: int) -> None:
        names = (f"{name}-{number}" for name in "ab")
        self.write_step(number, {name: lambda out, text=name: out.write(text.encode()) for name in names})

    def do_rest(self) -> None:
        """What a command does: the steps that are missing, and the end."""
        if not self.is_complete():
            for number in {0, 1, 2} - self.finished_steps():
                self.do(number)
            self.write_manifest({"made_of": self.provenance})


def in_order(folder: Path) -> None:
    steps = StepsInOrder(folder, MADE_OF)
    if not steps.is_complete():
        write_steps(steps, range(steps.num_done, 3))
        steps.finish({})


def in_any_order(folder: Path) -> None:
    Parts(folder, MADE_OF).do_rest()


def dies_at(last: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets the process die before its operation number ``last`` on the disk; returns the list of those it
    did."""
    done: list[str] = []

    def counted(name: str, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if len(done) == last:
                raise KeyboardInterrupt
            done.append(name)
            return real(*arguments, **options)

        return call

    for name in ("rename", "replace", "unlink", "fsync", "mkdir", "truncate"):
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    return done


@pytest.mark.parametrize("work", [in_order, in_any_order])
def test_killed_before_any_operation_the_folder_ends_the_same(
    work: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(tmp_path / "whole")
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").rglob("*") if path.is_file()}
    assert verify_folder(tmp_path / "whole") == []
    for last in range(200):
        folder = tmp_path / f"x{last}"
        with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
            done = dies_at(last, patched)
            work(folder)
        work(folder)
        assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == expected, (
            f"killed after {done}"
        )
        if len(done) < last:  # it came to its end
            break
    assert last > 20


def test_steps_in_any_order_are_written_again_where_they_are_damaged(tmp_path: Path) -> None:
    parts = Parts(tmp_path, MADE_OF)
    for number in range(4):
        parts.do(number)
    (tmp_path / "a-0").write_text("x0")
    (tmp_path / "b-1").unlink()
    (tmp_path / "step-00002.json").write_text("{")
    assert Parts(tmp_path, MADE_OF).finished_steps() == {3}


def test_two_processes_write_one_folder(tmp_path: Path) -> None:
    in_any_order(tmp_path / "whole")
    first, second = Parts(tmp_path / "x", MADE_OF), Parts(tmp_path / "x", MADE_OF)
    (tmp_path / "x" / ".tmp-b-2-1.1@another").touch()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda task: task[0].do(task[1]), [(first, 0), (second, 1)]))
    (tmp_path / "x" / ".tmp-b-2-1.1@another").unlink()
    assert first.finished_steps() == second.finished_steps() == {0, 1}
    first.do_rest()
    assert second.is_complete()
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()
    }
    lock = RunLock(tmp_path / "y", file=lock_of(tmp_path / "y"))
    lock.acquire([replace(this_process(), pid=os.getppid(), start=0)])
    with (
        pytest.raises(CheckpointError, match="another run is writing here"),
        steps_in_order(tmp_path / "y", {}),
    ):
        pass


def test_a_finished_folder_that_is_damaged_is_opened_again_and_keeps_its_good_steps(tmp_path: Path) -> None:
    in_any_order(tmp_path)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "b-1").write_text("b")
    parts = Parts(tmp_path, MADE_OF)
    parts.reopen()
    assert not parts.is_complete() and parts.finished_steps() == {0, 2}
    parts.do_rest()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == whole


@pytest.mark.parametrize("is_finished", [False, True])
def test_work_of_something_else_is_begun_anew_where_that_is_wanted(tmp_path: Path, is_finished: bool) -> None:
    parts = Parts(tmp_path / "x", MADE_OF)
    parts.do(0)
    if is_finished:
        parts.do_rest()
    same = Parts(tmp_path / "x", MADE_OF, restart=True)
    assert same.is_complete() if is_finished else same.finished_steps() == {0}
    again = Parts(tmp_path / "x", {"of": [2]}, restart=True)
    assert not again.is_complete() and [path.name for path in again.folder.iterdir()] == ["unfinished.json"]
    again.do(0)
    (tmp_path / "x" / "unfinished.json").unlink()
    with pytest.raises(InputError, match=r"holds other files"):
        Parts(tmp_path / "x", MADE_OF)
    assert Parts(tmp_path / "x", MADE_OF, restart=True).finished_steps() == set()


@pytest.mark.parametrize("work", [in_order, in_any_order])
def test_other_provenance_is_refused_by_name(work: Any, tmp_path: Path) -> None:
    kind = StepsInOrder if work is in_order else Parts
    kind(tmp_path / "x", {"of": {"rows": 1, "seed": 2}})
    with pytest.raises(
        InputError,
        match=(
            r"x: holds unfinished output with of\.rows=1, this run has 3; choose another name, or remove the"
            r" folder"
        ),
    ):
        kind(tmp_path / "x", {"of": {"rows": 3, "seed": 2}})
    work(tmp_path / "y")
    with pytest.raises(InputError, match=r"y: holds finished output with of=\[1\], this run has \[2\]"):
        kind(tmp_path / "y", {"of": [2]})
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "thesis").touch()
    with pytest.raises(InputError, match=r"z: holds other files \(thesis\)"):
        kind(tmp_path / "z", MADE_OF)
    with pytest.raises(InputError, match="is a file, expected a folder to write output into"):
        kind(tmp_path / "z" / "thesis", MADE_OF)
