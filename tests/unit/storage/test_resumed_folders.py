"""A folder that is written in steps keeps what was committed, wherever it is cut off, at a cost of a step that does not grow with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dpr.core.errors import InputError
from dpr.storage import resumed_folders
from dpr.storage.resumed_folders import ResumedFolder

MADE_OF = {"of": [1]}


def write_steps(steps: ResumedFolder, numbers: range) -> None:
    """Each step writes a file of its own and adds to one that all have."""
    for number in numbers:
        for name, text in ((f"parts/{number}", f"part {number}"), ("all", str(number % 10))):
            with steps.appended(name) as out:
                out.write(text.encode())
        steps.commit()


def files_of(folder: Path) -> dict[str, bytes]:
    names = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: content for name, content in names.items() if not name.startswith("progress")}


def test_a_step_costs_the_same_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    steps = ResumedFolder(tmp_path / "x", MADE_OF)
    monkeypatch.setattr(resumed_folders, "flush", flushed.append)
    monkeypatch.setattr(resumed_folders, "write_json", None)
    log, sizes = tmp_path / "x" / "progress.jsonl", [0]
    for number in range(100, 150):
        write_steps(steps, range(number, number + 1))
        sizes.append(log.stat().st_size)
    assert len(flushed) == 50 * 2, "the folder and that of the parts"
    assert sizes[-1] - sizes[-2] <= sizes[1] + 2


def test_cut_off_anywhere_it_continues_after_the_last_whole_step(tmp_path: Path) -> None:
    write_steps(ResumedFolder(tmp_path / "whole", MADE_OF), range(5))
    write_steps(ResumedFolder(tmp_path / "x", MADE_OF), range(2))
    write_steps(ResumedFolder(tmp_path / "x", MADE_OF), range(2, 4))  # as a second process, whose log begins at the third step
    log = (tmp_path / "x" / "progress.jsonl").read_bytes()
    first = log.index(b"\n") + 1
    for cut in (0, 1, first - 1, first, first + 1, len(log) - 1, len(log)):
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "x", copy)
        (copy / "progress.jsonl").write_bytes(log[:cut])
        steps = ResumedFolder(copy, MADE_OF)
        assert steps.steps == 2 + log[:cut].count(b"\n")
        assert len(files_of(copy)) == steps.steps + 1 and len(files_of(copy)["all"]) == steps.steps
        write_steps(steps, range(steps.steps, 5))
        assert files_of(copy) == files_of(tmp_path / "whole")
        assert ResumedFolder(copy, MADE_OF).steps == 5
        shutil.rmtree(copy)


def test_a_log_that_outlived_its_summary_adds_nothing(tmp_path: Path) -> None:
    """A process killed while it opened the folder has summed the log up, and not removed it."""
    write_steps(ResumedFolder(tmp_path / "x", MADE_OF), range(3))
    log = (tmp_path / "x" / "progress.jsonl").read_bytes()
    before = files_of(tmp_path / "x")
    ResumedFolder(tmp_path / "x", MADE_OF)
    (tmp_path / "x" / "progress.jsonl").write_bytes(log[: log.rindex(b"{")])  # as a disk may keep it that was cut off
    assert ResumedFolder(tmp_path / "x", MADE_OF).steps == 3
    assert files_of(tmp_path / "x") == before


def test_progress_of_another_shape_is_refused(tmp_path: Path) -> None:
    write_steps(ResumedFolder(tmp_path / "x", MADE_OF), range(1))
    for line in ("[]", "{}", json.dumps({"steps": 2, "bytes": [1]})):
        (tmp_path / "x" / "progress.jsonl").write_text(json.dumps({"steps": 1, "bytes": {}}) + f"\n{line}\n")
        with pytest.raises(InputError, match="does not say how far the output is"):
            ResumedFolder(tmp_path / "x", MADE_OF)
    (tmp_path / "x" / "progress.jsonl").unlink()
    with pytest.raises(InputError, match="other inputs or settings"):
        ResumedFolder(tmp_path / "x", {"of": [2]})
