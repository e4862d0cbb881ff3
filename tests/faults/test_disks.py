"""Disks that are full, fail, or cannot be written at all."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dpr.formats.run_folders import checkpoint_folders
from dpr.storage.durable import durable_file, durable_folder, verify_folder
from tests.faults.conftest import Trial, fault
from tests.faults.runs import Workshop, saved_steps, state_hash

REFUSED = 3


@fault(
    "A8",
    "disk full (size limit) or failing flush, one or two saves",
    "a warning; older checkpoints whole; equal weights",
    trials=10,
)
def test_a_save_fails(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    first, count = trial.random.randint(1, 4), trial.random.randint(1, 2)
    fault = "full_disk" if trial.number % 2 else "failing_flush"
    run = workshop.finish(trial.output_dir, injections=[(fault, {"from_save": first, "saves": count})])
    assert run.rank_text(0).count("the next one is tried when it is due") == count, run.text
    assert all(not verify_folder(folder) for folder in checkpoint_folders(trial.output_dir))
    newest = [
        checkpoint_folders(folder)[0] for folder in (trial.output_dir, workshop.folder / "undisturbed-2")
    ]
    assert newest[0].name == newest[1].name
    assert state_hash(newest[0], best=False) == state_hash(newest[1], best=False)
    assert not list(trial.output_dir.glob(".*"))


@fault(
    "A8",
    "disk full in three saves in a row",
    "exit 3 everywhere; older checkpoints whole; equal weights later",
    trials=3,
)
def test_the_disk_stays_full(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    first = 2 + trial.number
    run = workshop.run(trial.output_dir, injections=[("full_disk", {"from_save": first, "saves": 9})])
    assert run.wait() == [REFUSED, REFUSED], run.text
    assert "File too large" in run.rank_text(0) or "too large" in run.rank_text(0), run.text
    assert saved_steps(trial.output_dir)[0] == 2 * (first - 1)
    assert all(not verify_folder(folder) for folder in checkpoint_folders(trial.output_dir))
    assert workshop.finished_hash(trial.output_dir) == undisturbed[2]


@fault(
    "A9",
    "output folder read-only, under a file, or gone for good",
    "exit 3 before step 1, the path named, on all ranks",
    trials=3,
)
def test_no_place_to_write(trial: Trial, workshop: Workshop) -> None:
    if trial.number == 0:
        output_dir = trial.output_dir
        output_dir.mkdir(mode=0o555)
    elif trial.number == 1:
        trial.output_dir.write_text("a file")
        output_dir = trial.output_dir / "run"
    else:
        trial.output_dir.mkdir(mode=0o555)
        output_dir = trial.output_dir / "gone" / "run"
    run = workshop.run(output_dir, injections=[("without_privileges", {})])
    assert run.wait() == [REFUSED, REFUSED], run.text
    assert f"error: {output_dir}: cannot be written (" in run.rank_text(0)
    assert "step 1/" not in run.text


def test_what_gets_its_name_has_been_flushed_and_then_the_folder_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may lose what was written and not flushed."""
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))

    def checked(rename: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def renamed(source: Path, target: Path) -> None:
            assert {path.stat().st_ino for path in (source, *source.rglob("*"))} <= set(flushed), source
            rename(source, target)

        return renamed

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, checked(getattr(os, name)))
    with durable_folder(tmp_path / "run") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a").write_text("a")
    assert flushed[-1] == tmp_path.stat().st_ino
    with durable_file(tmp_path / "file", note={"made": "of this"}) as file:
        file.write("b")
    assert flushed[-1] == tmp_path.stat().st_ino
