"""A link in the place of a lock, a log or a temporary file is never followed."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dpr.core.errors import OutputError
from dpr.storage.durable import append_jsonl, durable_file, durable_folder
from dpr.storage.leftovers import open_own, temporary_beside
from dpr.storage.locks import lock_of, locked
from dpr.storage.outputs import ensure_built, output, require_writable

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
def test_a_link_in_the_place_of_a_file_that_is_written_is_refused(
    tmp_path: Path, precious: Path, name: str, kind: str
) -> None:
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


def test_a_link_in_the_place_of_a_temporary_name_is_replaced_not_followed(
    tmp_path: Path, precious: Path
) -> None:
    out = tmp_path / "out"
    temporary_beside(out).symlink_to(precious)
    with durable_file(out) as file:
        file.write("content")
    assert not out.is_symlink() and out.read_text() == "content"
    temporary_beside(tmp_path / "probe").symlink_to(precious)
    require_writable(tmp_path / "new")
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
