"""A place that cannot be written is refused before the work; finished outputs are recognised."""

import errno
import os
import pickle
import time
from pathlib import Path

import pytest

from dpr.core.errors import CheckpointError, DprError, InputError, OutputError
from dpr.storage import leftovers, locks, outputs
from dpr.storage.checksums import recalled, remember, verify_file
from dpr.storage.durable import durable_file, durable_folder, write_manifest
from dpr.storage.leftovers import ProcessName
from dpr.storage.locks import alone_with, lock_of, locked
from dpr.storage.outputs import ensure_built, output, require_writable
from tests.helpers.users import bound_by_permissions

MADE_OF = {"seed": 1, "inputs": [["a.txt", "0123"]], "corpus": None}


def make_file(target: Path, text: str = "content") -> bool:
    with output(target, MADE_OF) as is_missing:
        if is_missing:
            with durable_file(target, note=MADE_OF) as out:
                out.write(text)
        return is_missing


def make_folder(target: Path) -> bool:
    with output(target, MADE_OF) as is_missing:
        if is_missing:
            with durable_folder(target, metadata={"made_of": MADE_OF}) as folder:
                (folder / "part").write_text("content")
        return is_missing


@pytest.mark.parametrize("make", [make_file, make_folder])
def test_the_same_is_made_once_and_something_else_is_refused(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    target = tmp_path / "new" / "out"
    assert [make(target), make(target)] == [True, False]
    with (
        pytest.raises(InputError, match="already exists, made with another corpus, seed"),
        output(target, MADE_OF | {"seed": 2, "corpus": "x"}),
    ):
        pass
    part = target / "part" if target.is_dir() else target
    part.write_text("CONTENT")
    with pytest.raises(InputError, match="has changed since it was made"):
        make(target)
    assert not lock_of(target).exists()


def test_what_others_made_is_refused_and_folders_of_others_are_not_even_replaced_when_asked(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    for name in ("file", "folder"):
        with pytest.raises(InputError, match="already exists"), output(tmp_path / name, MADE_OF):
            pass
    with (
        pytest.raises(InputError, match="did not write"),
        output(tmp_path / "folder", MADE_OF, overwrite=True),
    ):
        pass
    with output(tmp_path / "file", MADE_OF, overwrite=True) as is_missing:
        assert is_missing


def test_a_process_killed_between_the_note_and_the_file_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def kill(source: Path, target: Path) -> None:
        if Path(target).name == "out":
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", kill)
    with pytest.raises(KeyboardInterrupt):
        make_file(tmp_path / "out")
    monkeypatch.undo()
    assert (tmp_path / "out.sha256").exists() and not (tmp_path / "out").exists()
    assert make_file(tmp_path / "out")
    assert verify_file(tmp_path / "out") == []


def test_two_at_once_do_not_write_the_same_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "this_process", lambda: ProcessName("x", 1, 0))
    with locked(tmp_path / "out", file=lock_of(tmp_path / "out")):
        monkeypatch.undo()
        with (
            pytest.raises(CheckpointError, match=r"process 1 on x \(rank 0, since 20"),
            output(tmp_path / "out", MADE_OF),
        ):
            pass


@pytest.mark.parametrize("folder", [False, True])
def test_places_that_cannot_be_written_are_refused(tmp_path: Path, folder: bool) -> None:
    (tmp_path / "file").write_text("x")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    places = [parent / name for parent in (tmp_path / "file", closed) for name in ("out", "deep/out")]
    places += [tmp_path / ("x" * 300), tmp_path / "a\0b", tmp_path / "file" if folder else closed, Path("/")]
    with bound_by_permissions(tmp_path):
        for place in places:
            with pytest.raises(OutputError, match="cannot be written") as caught:
                require_writable(place, folder=folder)
            assert "\n" not in str(caught.value)
        require_writable(tmp_path / "new" / "deep" / "out", folder=folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["closed", "file"]


@pytest.mark.parametrize("folder", [False, True])
def test_nothing_is_added_to_a_checkpoint(tmp_path: Path, folder: bool) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "model.safetensors").touch()
    write_manifest(tmp_path / "checkpoint", {})
    for place in ("checkpoint/out", "checkpoint/deep/out"):
        with pytest.raises(OutputError, match=r"checkpoint is a checkpoint, which"):
            require_writable(tmp_path / place, folder=folder)
    require_writable(tmp_path / "checkpoint-2" / "out", folder=folder)


def test_an_output_error_is_one_of_the_system_and_one_for_people_and_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(OutputError("out", "No space left on device")))
    assert isinstance(error, OSError) and isinstance(error, DprError) and not isinstance(error, InputError)
    assert (str(error), error.strerror, error.exit_code) == (
        "out: cannot be written (No space left on device)",
        "No space left on device",
        3,
    )


def test_a_cache_keeps_no_locks_and_no_notes_that_nobody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPR_CACHE", str(cache := tmp_path / "cache"))
    cache.mkdir()
    (cache / "killed.lock").touch()
    file = tmp_path / "file"
    file.write_text("content")
    os.utime(file, (1e9, 1e9))
    (cache / "contents").mkdir()
    for age in (1, 61):
        (cache / "contents" / f"of {age} days").touch()
        os.utime(cache / "contents" / f"of {age} days", (then := time.time() - age * 86_400 - 60, then))
    (cache / "contents" / f".tmp-x-{2**22 + 1}.1@{leftovers._in_a_name(leftovers._host())}").touch()
    with alone_with(cache / "held.lock"):
        ensure_built(cache / "new", lambda folder: folder.mkdir())
        assert sorted(path.name for path in cache.rglob("*") if path.is_file()) == ["held.lock", "of 1 days"]
    with pytest.raises(KeyError):
        ensure_built(cache / "other", lambda folder: {}[folder])
    assert not (cache / "other.lock").exists()


def test_a_killed_build_leaves_no_lock_beside_what_is_whole(tmp_path: Path) -> None:
    with durable_folder(tmp_path / "built", metadata={"cache": "built"}):
        pass
    (tmp_path / "built.lock").touch()
    (tmp_path / "poetry.lock").write_text("of another program")
    ensure_built(tmp_path / "built", lambda _: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["built", "poetry.lock"]


def test_a_note_that_is_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path))
    remember("fact", ["a"], "so")
    (note,) = (tmp_path / "contents").iterdir()
    os.utime(note, (1e9, 1e9))
    assert recalled("fact", ["a"]) == "so"
    assert time.time() - note.stat().st_mtime < 60


def test_a_note_that_lost_its_end_is_noticed_wherever_it_was_cut(tmp_path: Path) -> None:
    make_file(tmp_path / "out")
    note = tmp_path / "out.sha256"
    text = note.read_text()
    for length in range(len(text) - 1):  # the newline at the end says nothing
        note.write_text(text[:length])
        assert verify_file(tmp_path / "out"), length
    with pytest.raises(InputError, match="holds no SHA-256, or was cut off"):
        make_file(tmp_path / "out")
    note.write_text("".join(reversed(text.splitlines(keepends=True))))  # as earlier versions wrote it
    assert verify_file(tmp_path / "out") == []
    assert not make_file(tmp_path / "out")


def test_a_full_disk_under_the_cache_is_said_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(outputs, "open_own", full)
    with pytest.raises(OutputError, match=r"No space left on device.*DPR_CACHE") as caught:
        ensure_built(tmp_path / "cache" / "texts", lambda _: None)
    assert caught.value.exit_code == 3
