import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import InputError
from dpr.storage import checksums
from dpr.storage.checksums import content_sha256


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


def test_a_file_that_was_written_just_now_is_read_again(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_cache_that_cannot_be_written_only_costs_time(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
