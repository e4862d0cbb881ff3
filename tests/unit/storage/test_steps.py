"""A folder that is written in steps keeps those that were finished, wherever it is cut off."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import InputError
from dpr.storage.durable import verify_folder
from dpr.storage.steps import Steps

MADE_OF = {"of": [1]}


def test_a_claim_or_a_proof_of_another_shape_is_refused_or_no_proof(tmp_path: Path) -> None:
    Parts(tmp_path / "x", MADE_OF).do(0)
    for text in ("[]", "{}", json.dumps({"files": {"a-1": 1}})):
        (tmp_path / "x" / "step-00001.json").write_text(text)
        assert Parts(tmp_path / "x", MADE_OF).finished_steps() == {0}
    for text, message in (("[]", "does not state the provenance of its output"), ("x", "not JSON")):
        (tmp_path / "x" / "unfinished.json").write_text(text)
        with pytest.raises(InputError, match=message):
            Parts(tmp_path / "x", MADE_OF)


class Parts(Steps):
    def do(self, number: int) -> None:
        names = (f"{name}-{number}" for name in "ab")
        self.write_step(number, {name: lambda out, text=name: out.write(text.encode()) for name in names})

    def do_rest(self) -> None:
        """What a command does: the steps that are missing, and the end."""
        if not self.is_complete():
            for number in {0, 1, 2} - self.finished_steps():
                self.do(number)
            self.write_manifest({"made_of": self.provenance})


def all_steps(folder: Path) -> None:
    Parts(folder, MADE_OF).do_rest()


def dies_at(last: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Raises in place of operation number ``last`` on the disk; returns the operations before it."""
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


def test_killed_at_any_operation_it_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    all_steps(tmp_path / "whole")
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").rglob("*") if path.is_file()}
    assert verify_folder(tmp_path / "whole") == []
    for last in range(200):
        folder = tmp_path / f"x{last}"
        with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
            done = dies_at(last, patched)
            all_steps(folder)
        all_steps(folder)
        assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == expected, (
            f"killed after {done}"
        )
        if len(done) < last:  # it came to its end
            break
    assert last > 20


def test_steps_all_steps_are_written_again_where_they_are_damaged(tmp_path: Path) -> None:
    parts = Parts(tmp_path, MADE_OF)
    for number in range(4):
        parts.do(number)
    (tmp_path / "a-0").write_text("x0")
    (tmp_path / "b-1").unlink()
    (tmp_path / "step-00002.json").write_text("{")
    assert Parts(tmp_path, MADE_OF).finished_steps() == {3}


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


def test_other_provenance_is_refused_by_name(tmp_path: Path) -> None:
    Parts(tmp_path / "x", {"of": {"rows": 1, "seed": 2}})
    with pytest.raises(
        InputError,
        match=(
            r"x: holds unfinished output with of=\{'rows': 1, 'seed': 2\}, this run has \{'rows': 3, 'seed': 2\};"
            r" choose another name, or remove the folder"
        ),
    ):
        Parts(tmp_path / "x", {"of": {"rows": 3, "seed": 2}})
    all_steps(tmp_path / "y")
    with pytest.raises(InputError, match=r"y: holds finished output with of=\[1\], this run has \[2\]"):
        Parts(tmp_path / "y", {"of": [2]})
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "thesis").touch()
    with pytest.raises(InputError, match=r"z: holds other files \(thesis\)"):
        Parts(tmp_path / "z", MADE_OF)
    with pytest.raises(InputError, match="is a file, expected a folder to write output into"):
        Parts(tmp_path / "z" / "thesis", MADE_OF)
