import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import InputError
from dpr.storage import checksums
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import (
    append_jsonl,
    durable_file,
    durable_folder,
    read_manifest,
    verify_folder,
    write_json,
)
from dpr.storage.leftovers import remove_leftovers, temporary_beside
from dpr.storage.untrusted import read_json
from tests.helpers.users import bound_by_permissions

HOST = temporary_beside(Path("x")).name.rpartition("@")[2]


def make_folder(target: Path, **files: str) -> Path:
    with durable_folder(target, metadata={"made": "here"}) as folder:
        for name, text in (files or {"a": "first", "b": "second"}).items():
            (folder / name).write_text(text)
    return target


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_folder_appears_whole_with_its_manifest(tmp_path: Path) -> None:
    with durable_folder(tmp_path / "out", metadata={"x": 1}) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "f.txt").write_text("hello")
        assert not (tmp_path / "out").exists()
    manifest = read_manifest(tmp_path / "out")
    assert manifest["metadata"] == {"x": 1}
    assert manifest["files"] == {
        # printf hello | sha256sum
        "deep/f.txt": {
            "bytes": 5,
            "sha256": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        }
    }
    assert verify_folder(tmp_path / "out") == []
    assert names(tmp_path) == ["out"]


def test_nothing_is_left_of_a_folder_or_file_whose_writer_failed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")

    def fail_in_folder() -> None:
        with durable_folder(tmp_path / "out") as folder:
            (folder / "half").write_text("x")
            raise RuntimeError

    def fail_in_file() -> None:
        with durable_file(tmp_path / "file") as file:
            file.write("new")
            raise RuntimeError

    for fail in (fail_in_folder, fail_in_file):
        with pytest.raises(RuntimeError):
            fail()
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_existing_folder_is_replaced_only_when_asked(tmp_path: Path) -> None:
    make_folder(tmp_path / "out", a="1")
    with pytest.raises(InputError, match="already exists"), durable_folder(tmp_path / "out"):
        pytest.fail("the block must not run")
    with durable_folder(tmp_path / "out", overwrite=True) as folder:
        (folder / "b").write_text("2")
        assert (tmp_path / "out" / "a").exists()
    assert names(tmp_path / "out") == ["b", "manifest.json"]
    assert names(tmp_path) == ["out"]


def test_target_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    def write_beside() -> None:
        with durable_folder(tmp_path / "out") as folder:
            (folder / "a").write_text("mine")
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "a").write_text("theirs")

    with pytest.raises(InputError, match="already exists"):
        write_beside()
    assert (tmp_path / "out" / "a").read_text() == "theirs"


def test_files_get_the_mode_of_the_umask_whoever_wrote_them(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with durable_folder(tmp_path / "out") as folder:
            (folder / "private").touch(mode=0o600)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o640}


def test_every_kind_of_damage_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "out", flipped="abc", shorter="abc", gone="abc", link="abc", good="abc")
    (folder / "flipped").write_text("abd")
    (folder / "shorter").write_text("ab")
    (folder / "gone").unlink()
    (folder / "link").unlink()
    (folder / "link").symlink_to(folder / "good")
    (folder / "extra").write_text("x")
    problems = {problem.partition(":")[0]: problem for problem in verify_folder(folder)}
    assert set(problems) == {"flipped", "shorter", "gone", "link", "extra"}
    assert "has changed" in problems["flipped"]
    assert "has 2 bytes, the manifest says 3" in problems["shorter"]
    assert "missing" in problems["gone"]
    assert "symbolic link" in problems["link"]
    assert "not in the manifest" in problems["extra"]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "", "a\\b"])
def test_manifest_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    folder = make_folder(tmp_path / "out")
    (tmp_path / "secret").write_text("x")
    manifest = read_json(folder / "manifest.json")
    manifest["files"][name] = {"bytes": 1, "sha256": "0"}
    write_json(folder / "manifest.json", manifest)
    with pytest.raises(InputError, match="leaves the folder"):
        read_manifest(folder)
    assert "leaves the folder" in verify_folder(folder)[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a manifest"),
        ('{"schema": 2, "files": {}, "metadata": {}}', "schema 2"),
        ("\xff", "not JSON"),
        (r'{"schema": 1, "files": {}, "metadata": {"kind": "\ud800"}, "sha256": "0"}', "has changed"),
        (
            f'{{"schema": 1, "files": {{}}, "metadata": {{"kind": {"[" * 800}{"]" * 800}}}, "sha256": "0"}}',
            "nested too deeply",
        ),
    ],
)
def test_broken_manifest_is_one_clear_problem(tmp_path: Path, text: str, message: str) -> None:
    folder = make_folder(tmp_path / "out")
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    (problem,) = verify_folder(folder)
    assert message in problem
    assert "manifest.json" in problem


@pytest.mark.parametrize(
    ("closed", "message"),
    [("a", "a: cannot be read"), ("manifest.json", "cannot be read"), (".", "cannot be read")],
)
def test_what_may_not_be_read_is_a_problem_and_no_failure(tmp_path: Path, closed: str, message: str) -> None:
    folder = make_folder(tmp_path / "out")
    (folder / closed).chmod(0)
    with bound_by_permissions(tmp_path):
        problems = verify_folder(folder)
    (folder / closed).chmod(0o755)
    assert len(problems) == 1 and message in problems[0] and "ermission denied" in problems[0]


def test_unfinished_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    with pytest.raises(InputError, match="unfinished"):
        read_manifest(tmp_path / "half")
    with pytest.raises(InputError, match="no such folder"):
        read_manifest(tmp_path / "none")


def test_leftovers_of_dead_writers_are_removed_and_those_of_living_ones_kept(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    (tmp_path / f".tmp-dead-{child.pid}@{HOST}").mkdir()
    (tmp_path / f".tmp-reused-{os.getppid()}.5@{HOST}").mkdir()  # that process started at another time
    (tmp_path / f".tmp-file-{child.pid}@{HOST}").write_text("x")
    (tmp_path / f".tmp-living-{os.getppid()}@{HOST}").mkdir()
    (tmp_path / f".tmp-elsewhere-{child.pid}@another_host").mkdir()
    (tmp_path / ".tmp-notours").mkdir()
    with durable_folder(tmp_path / "out"):
        assert not list(tmp_path.glob(".tmp-dead-*"))
        remove_leftovers(tmp_path)  # our own, in use
    kept = {f".tmp-living-{os.getppid()}@{HOST}", f".tmp-elsewhere-{child.pid}@another_host", ".tmp-notours"}
    assert set(names(tmp_path)) == {*kept, "out"}
    (tmp_path / "out" / f".tmp-dead-{child.pid}@{HOST}").touch()
    with durable_file(tmp_path / "out" / "file"):
        assert not list((tmp_path / "out").glob(".tmp-dead-*"))


def test_jsonl_lines_stay_whole_after_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "m.jsonl"
    append_jsonl(path, {"step": 1})
    with open(path, "a") as file:
        file.write('{"step": 2, "lo')  # a killed writer
    append_jsonl(path, {"step": 3, "loss": float("nan")})
    assert path.read_text().splitlines() == ['{"step": 1}', '{"step": 2, "lo', '{"loss": null, "step": 3}']


def test_read_json_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{\n "a": 1,\n}')
    with pytest.raises(InputError, match=r"x\.json:[23]: not JSON"):
        read_json(path)
    path.write_text('{"a": NaN}')
    with pytest.raises(InputError, match="NaN is not a JSON number"):
        read_json(path)
    with pytest.raises(InputError, match="No such file"):
        read_json(tmp_path / "none.json")
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(path) == [1]


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read; every file counts as settled."""
    real, seen = hashlib.file_digest, []

    def counted(file: Any, kind: str) -> Any:
        seen.append(Path(file.name).name)
        return real(file, kind)

    monkeypatch.setattr(checksums.hashlib, "file_digest", counted)
    monkeypatch.setattr(checksums, "_SETTLED_NS", -(10**18))
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    return seen


def large_file(path: Path) -> Path:
    path.write_bytes(b"x" * 3 * 2**20)
    return path


def test_a_file_is_read_once_and_again_when_its_middle_changed(tmp_path: Path, reads: list[str]) -> None:
    file = large_file(tmp_path / "corpus.tsv")
    before = content_sha256(file)
    assert content_sha256(file) == before == hashlib.sha256(file.read_bytes()).hexdigest()
    assert reads == ["corpus.tsv"]
    times = file.stat()
    with open(file, "r+b") as out:
        out.seek(2**20 + 2**19)
        out.write(b"y")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as tools do that keep times
    assert content_sha256(file) == hashlib.sha256(file.read_bytes()).hexdigest() != before


def test_new_files_are_read_again(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "_SETTLED_NS", 10**18)
    file = large_file(tmp_path / "corpus.tsv")
    assert content_sha256(file) == content_sha256(file)
    assert len(reads) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "of another file", "not text", "a folder"])
def test_damaged_and_lying_notes_do_not_matter(damage: str, tmp_path: Path, reads: list[str]) -> None:
    file, other = large_file(tmp_path / "corpus.tsv"), tmp_path / "other.tsv"
    other.write_bytes(b"other")
    expected = content_sha256(file)
    (note,) = (tmp_path / "cache" / "contents").iterdir()
    content_sha256(other)
    (others,) = set((tmp_path / "cache" / "contents").iterdir()) - {note}
    text = note.read_text()
    if damage == "a folder":
        note.unlink()
        note.mkdir()
    else:
        flipped = ("1" if text[0] == "0" else "0") + text[1:]
        changed = {
            "cut": text[:70],
            "flipped": flipped,
            "of another file": others.read_text(),
            "not text": "\xff\xfe",
        }
        note.write_text(changed[damage], encoding="latin-1")
    assert content_sha256(file) == expected


def test_no_cache_only_costs_time(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").write_text("")
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "plain" / "cache"))
    file = large_file(tmp_path / "corpus.tsv")
    assert content_sha256(file) == content_sha256(file)
    assert len(reads) == 2


def test_a_folder_is_its_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a" / "inner").mkdir(parents=True)
    (tmp_path / "a" / "inner" / "x.tsv").write_text("1")
    before = content_sha256(tmp_path / "a")
    (tmp_path / "a" / "inner" / "x.tsv").write_text("2")
    changed = content_sha256(tmp_path / "a")
    (tmp_path / "a" / "inner" / "x.tsv").rename(tmp_path / "a" / "x.tsv")
    assert len({before, changed, content_sha256(tmp_path / "a")}) == 3
    with pytest.raises(InputError, match="cannot be read: No such file"):
        content_sha256(tmp_path / "none")
