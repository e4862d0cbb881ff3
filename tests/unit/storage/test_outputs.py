"""Places that cannot be written are refused before the work, finished outputs are recognised, and no link is followed."""

import errno
import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dpr.core.errors import CheckpointError, DprError, InputError, OutputError
from dpr.storage import leftovers, locks, outputs
from dpr.storage.checksums import recalled, remember, verify_file
from dpr.storage.durable import append_jsonl, durable_file, durable_folder, write_manifest
from dpr.storage.leftovers import ProcessName, open_own, temporary_beside
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


def test_what_others_made_is_refused_and_their_folders_are_never_replaced(tmp_path: Path) -> None:
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


def test_a_kill_between_note_and_file_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert (error.strerror, error.exit_code) == ("No space left on device", 3)
    assert str(error) == "out: cannot be written (No space left on device)"


def test_a_cache_keeps_no_locks_and_no_unread_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(outputs, "TemporaryFile", full)
    with pytest.raises(OutputError, match=r"No space left on device.*DPR_CACHE") as caught:
        ensure_built(tmp_path / "cache" / "texts", lambda _: None)
    assert caught.value.exit_code == 3


PRECIOUS = "years of work\n"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "precious"
    file.write_text(PRECIOUS)
    return file


def write_output(out: Path) -> None:
    with output(out, {}) as is_missing:
        assert is_missing


def hold_run(out: Path) -> None:
    out.mkdir(exist_ok=True)
    with locked(out):
        pass


def build_cache(out: Path) -> None:
    ensure_built(out, lambda folder: folder.mkdir())


REFUSED: dict[str, tuple[Callable[[Path], Path], Callable[[Path], None]]] = {
    "lock of an output": (lock_of, write_output),
    "lock of a run": (lambda out: out / "run.lock", hold_run),
    "lock of a cache": (lock_of, build_cache),
    "metrics": (lambda out: out, lambda out: append_jsonl(out, {})),
}


@pytest.mark.parametrize("kind", ["soft", "dangling", "hard", "pipe", "folder"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_link_in_place_of_output_is_refused(tmp_path: Path, precious: Path, name: str, kind: str) -> None:
    out = tmp_path / "shared" / "out"
    place = REFUSED[name][0](out)
    place.parent.mkdir(parents=True)
    if kind == "hard" and name in ("metrics", "lock of a cache"):
        pytest.skip("what is there already is appended to, or left alone")
    make = {
        "soft": lambda: place.symlink_to(precious),
        "dangling": lambda: place.symlink_to(precious.with_name("new")),
        "hard": lambda: place.hardlink_to(precious),
        "pipe": lambda: os.mkfifo(place),
        "folder": place.mkdir,
    }
    make[kind]()
    with pytest.raises(OutputError) as caught:
        REFUSED[name][1](out)
    assert str(place) in str(caught.value)
    assert precious.read_text() == PRECIOUS
    assert [path.name for path in precious.parent.iterdir()] == ["precious"]


def test_a_link_in_place_of_a_temporary_name_is_replaced_not_followed(tmp_path: Path, precious: Path) -> None:
    out = tmp_path / "out"
    temporary_beside(out).symlink_to(precious)
    with durable_file(out) as file:
        file.write("content")
    assert not out.is_symlink() and out.read_text() == "content"
    temporary_beside(tmp_path / "folder").symlink_to(precious.parent)
    with durable_folder(tmp_path / "folder") as folder:
        (folder / "part").write_text("content")
    out.with_name("out.sha256").symlink_to(precious)
    out.with_name("out").unlink()
    with durable_file(out, note={"seed": 1}) as file:
        file.write("content")
    assert precious.read_text() == PRECIOUS
    assert [path.name for path in precious.parent.iterdir()] == ["precious"]


def test_a_file_that_is_no_lock_is_not_taken_over_and_a_damaged_lock_is(tmp_path: Path) -> None:
    lock = lock_of(tmp_path / "out")
    lock.write_text("[packages]\n")
    with pytest.raises(OutputError, match=r"out\.lock: cannot be written \(it is not a lock file\)"):
        write_output(tmp_path / "out")
    assert lock.read_text() == "[packages]\n"
    for damaged in ("", "\0" * 40, '{"token": "ab', json.dumps({"token": "x", "processes": [{"host": 3}]})):
        lock.write_text(damaged)
        write_output(tmp_path / "out")
        assert not lock.exists()


def test_what_is_new_is_created_and_nothing_that_was_there_is_opened(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "x").hardlink_to(precious)
    with open_own(tmp_path / "x", "xb") as file:
        file.write(b"new")
    assert (precious.read_text(), (tmp_path / "x").read_text()) == (PRECIOUS, "new")
