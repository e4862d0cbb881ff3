"""Archives unpack inside their folder, or not at all: a dozen ways to do harm, each refused, nothing left."""

import io
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dpr.core.errors import InputError
from dpr.formats.downloads import unpack


def zipped(*members: tuple[str, int, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, mode, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return out.getvalue()


def lying_zip() -> bytes:
    """The directory states 10 bytes, the data unpack to 5 MB."""
    data = bytearray(zipped(("a", 0o100644, b"0" * 5_000_000)))
    place = data.rindex(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", 10)
    return bytes(data)


def encrypted_zip() -> bytes:
    data = bytearray(zipped(("a", 0o100644, b"abc")))
    place = data.rindex(b"PK\x01\x02")
    data[place + 8] |= 1
    return bytes(data)


EVIL: dict[str, Callable[[], bytes]] = {
    "zip parent": lambda: zipped(("../out", 0o100644, b"x")),
    "zip absolute": lambda: zipped(("/tmp/out", 0o100644, b"x")),
    "zip symbolic link": lambda: zipped(("a", stat.S_IFLNK | 0o777, b"/etc")),
    "zip device": lambda: zipped(("a", stat.S_IFCHR | 0o666, b"")),
    "zip drive letter": lambda: zipped(("C:/out", 0o100644, b"x")),
    "zip bomb": lambda: zipped(("a", 0o100644, b"0" * 5_000_000)),
    "zip lying about its size": lying_zip,
    "zip encrypted": encrypted_zip,
    "zip our own manifest": lambda: zipped(("manifest.json", 0o100644, b"{}")),
    "cut off": lambda: zipped(("a", 0o100644, bytes(range(256)) * 400))[:-40],
    "the same file twice": lambda: zipped(("a", 0o100644, b"x"), ("./a", 0o100644, b"y")),
    "backslash": lambda: zipped(("..\\out", 0o100644, b"x")),
    "too many files": lambda: zipped(*((str(number), 0o100644, b"x") for number in range(60))),
    "no archive": lambda: b"PK or not",
}


@pytest.mark.parametrize("name", EVIL)
def test_evil_archives_are_refused_and_leave_nothing(tmp_path: Path, name: str) -> None:
    file = "x.zip"
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    (inside / file).write_bytes(EVIL[name]())
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError) as caught:
        unpack(inside / file, inside / "out", max_files=50, max_bytes=1_000_000)
    assert str(inside / file) in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_good_archive_is_unpacked(tmp_path: Path) -> None:
    """Without it the test above could pass because everything is refused."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("sub")
        archive.writestr("a.txt", "a")
        archive.writestr("sub/b.txt", "b" * 100_000)
    assert unpack(tmp_path / "x.zip", tmp_path / "out") == 2
    assert (tmp_path / "out" / "a.txt").read_text() == "a"
    assert (tmp_path / "out" / "sub" / "b.txt").read_text() == "b" * 100_000
    with pytest.raises(InputError, match="already exists"):
        unpack(tmp_path / "x.zip", tmp_path / "out")
