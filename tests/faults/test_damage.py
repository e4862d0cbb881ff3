"""Checkpoints that were changed after they were written are noticed, named and passed over."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dpr.formats.run_folders import checkpoint_folders
from dpr.storage.durable import durable_file, durable_folder, verify_folder
from tests.faults.conftest import Case, Trial, fault
from tests.faults.runs import NAME, Workshop, final_hash, saved_steps, state_hash

REFUSED = 3


@pytest.fixture(scope="module")
def finished(workshop: Workshop, undisturbed: dict[int, str]) -> Path:
    return workshop.folder / "undisturbed-2"


def newest(output_dir: Path) -> Path:
    return checkpoint_folders(output_dir)[0]


def checkpoint_files(output_dir: Path) -> list[str]:
    folder = newest(output_dir)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def check_fallback(workshop: Workshop, output_dir: Path, named: str, expected: str) -> None:
    """The damage is found by ``verify``, named when the run resumes, and without effect on its end."""
    before = saved_steps(output_dir)
    problems = verify_folder(newest(output_dir))
    assert any(named in problem for problem in problems), problems
    run = workshop.finish(output_dir)
    assert f"{NAME}.step{before[0]} is damaged" in run.rank_text(0), run.text
    assert named in run.rank_text(0)
    assert f"at step {before[1]}" in run.rank_text(0)
    assert final_hash(output_dir) == expected
    assert not verify_folder(newest(output_dir))


@pytest.mark.fault(
    "A5",
    "one byte changed, in every file of the newest checkpoint",
    "named, fallen back to the one before; equal weights",
)
def test_a_changed_byte(case: Case, workshop: Workshop, finished: Path, undisturbed: dict[int, str]) -> None:
    places = [(name, place) for name in checkpoint_files(finished) for place in range(3)]
    assert len(places) >= 27
    for trial in case.trials(len(places), fast=1):
        with trial:
            name, place = places[trial.number]
            shutil.copytree(finished, trial.output_dir)
            file = newest(trial.output_dir) / name
            data = bytearray(file.read_bytes())
            at = (0, len(data) - 1, trial.random.randrange(len(data)))[place]
            data[at] ^= 1 << trial.random.randrange(8)
            file.write_bytes(data)
            check_fallback(workshop, trial.output_dir, name, undisturbed[2])


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size * 2 // 3)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def replace_by_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


@pytest.mark.fault("A6", "each file truncated, empty, missing, longer, a link; a file too many", "as A5")
def test_a_changed_folder(
    case: Case, workshop: Workshop, finished: Path, undisturbed: dict[int, str]
) -> None:
    ways: list[Callable[[Path], None]] = [cut, empty, Path.unlink, lengthen, replace_by_link]
    places = [(name, way) for name in checkpoint_files(finished) for way in ways]
    for trial in case.trials(len(places) + 1, fast=0):
        with trial:
            shutil.copytree(finished, trial.output_dir)
            if trial.number == len(places):
                name = "extra.bin"
                (newest(trial.output_dir) / name).write_bytes(b"?")
            else:
                name, way = places[trial.number]
                way(newest(trial.output_dir) / name)
            check_fallback(workshop, trial.output_dir, name, undisturbed[2])


@fault(
    "A7",
    "all checkpoints damaged",
    "exit 3 on all ranks with each one's reason; resume=fresh starts a new run",
    trials=1,
)
def test_all_checkpoints_damaged(
    trial: Trial, workshop: Workshop, finished: Path, undisturbed: dict[int, str]
) -> None:
    shutil.copytree(finished, trial.output_dir)
    steps = saved_steps(trial.output_dir)
    for folder in checkpoint_folders(trial.output_dir):
        cut(folder / "model.safetensors")
    run = workshop.run(trial.output_dir)
    assert run.wait() == [REFUSED, REFUSED], run.text
    for step in steps:
        assert f"{NAME}.step{step}: model.safetensors: has " in run.rank_text(0)
    assert "resume=fresh" in run.rank_text(0)
    assert saved_steps(trial.output_dir) == steps, "nothing was touched"
    assert workshop.finished_hash(trial.output_dir, "resume=fresh") == undisturbed[2]
    assert len(list(trial.output_dir.glob("damaged-*"))) == len(steps)


@pytest.mark.fault(
    "A10",
    "leftovers of killed saves: .tmp-*, .old-*, a half step folder",
    "removed or ignored, equal weights",
)
def test_leftovers(case: Case, workshop: Workshop, finished: Path, undisturbed: dict[int, str]) -> None:
    host = os.uname().nodename.replace("-", "_")
    for trial in case.trials(10, fast=0):
        with trial:
            started = workshop.start(trial.output_dir)
            started.wait_for(rf"saved .*step{2 + trial.number % 4 * 2}")
            started.kill()
            dead = started.pids[0]
            for name in (
                f".tmp-{NAME}.step4-{dead}@{host}",
                f".tmp-run.json-{dead}@{host}x",
                f".old-{NAME}.step2-{dead}@{host}",
            ):
                (trial.output_dir / name).mkdir()
                (trial.output_dir / name / "model.safetensors").write_bytes(b"half")
            (trial.output_dir / f"{NAME}.step11").mkdir()
            (trial.output_dir / f"{NAME}.step11" / "model.safetensors").write_bytes(b"half")
            (trial.output_dir / "run.lock").write_text("")
            os.utime(trial.output_dir / "run.lock", (0, 0))
            run = workshop.finish(trial.output_dir)
            assert "no manifest.json" in run.rank_text(0)
            assert final_hash(trial.output_dir) == undisturbed[2]
            left = [path.name for path in trial.output_dir.glob(".*")]
            assert left == [f".tmp-run.json-{dead}@{host}x"], "that of another machine may still be written"


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
    newest = [checkpoint_folders(run)[0] for run in (trial.output_dir, workshop.folder / "undisturbed-2")]
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
