"""Archives unpack inside their folder, or not at all: twenty ways to do harm, each refused, nothing left."""

from __future__ import annotations

import gzip
import io
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dpr.core.errors import InputError
from dpr.formats.archives import is_archive, unpack


def tar(*members: tuple[str, dict[str, object]], content: bytes = b"x") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, fields in members:
            info = tarfile.TarInfo(name)
            for key, value in fields.items():
                setattr(info, key, value)
            if info.isfile():
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if info.isfile() else None)
    return out.getvalue()


def zipped(*members: tuple[str, int, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, mode, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return out.getvalue()


def long_header() -> bytes:
    """A pax header that claims to be 5 GB long."""
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 5 * 10**9
    return info.tobuf() + b"\0" * 10240


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


LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc"}
EVIL: dict[str, tuple[str, Callable[[], bytes]]] = {
    "tar parent": ("x.tar", lambda: tar(("../out", {}))),
    "tar parent inside": ("x.tar", lambda: tar(("a/../../out", {}))),
    "tar absolute": ("x.tar", lambda: tar(("/tmp/out", {}))),
    "tar symbolic link": ("x.tar", lambda: tar(("a", LINK))),
    "tar file through a link": (
        "x.tar",
        lambda: tar(("a", {"type": tarfile.SYMTYPE, "linkname": ".."}), ("a/out", {})),
    ),
    "tar hard link": ("x.tar", lambda: tar(("ok", {}), ("a", {"type": tarfile.LNKTYPE, "linkname": "ok"}))),
    "tar character device": ("x.tar", lambda: tar(("a", {"type": tarfile.CHRTYPE}))),
    "tar block device": ("x.tar", lambda: tar(("a", {"type": tarfile.BLKTYPE}))),
    "tar pipe": ("x.tar", lambda: tar(("a", {"type": tarfile.FIFOTYPE}))),
    "tar the same file twice": ("x.tar", lambda: tar(("a", {}), ("./a", {}))),
    "tar too many files": ("x.tar", lambda: tar(*((str(number), {}) for number in range(60)))),
    "tar bomb": ("x.tar.gz", lambda: gzip.compress(tar(("a", {}), content=b"0" * 5_000_000))),
    "tar endless header": ("x.tar", long_header),
    "tar backslash": ("x.tar", lambda: tar(("..\\out", {}))),
    "zip parent": ("x.zip", lambda: zipped(("../out", 0o100644, b"x"))),
    "zip absolute": ("x.zip", lambda: zipped(("/tmp/out", 0o100644, b"x"))),
    "zip symbolic link": ("x.zip", lambda: zipped(("a", stat.S_IFLNK | 0o777, b"/etc"))),
    "zip device": ("x.zip", lambda: zipped(("a", stat.S_IFCHR | 0o666, b""))),
    "zip drive letter": ("x.zip", lambda: zipped(("C:/out", 0o100644, b"x"))),
    "zip bomb": ("x.zip", lambda: zipped(("a", 0o100644, b"0" * 5_000_000))),
    "zip lying about its size": ("x.zip", lying_zip),
    "zip encrypted": ("x.zip", encrypted_zip),
    "zip our own manifest": ("x.zip", lambda: zipped(("manifest.json", 0o100644, b"{}"))),
    "cut off": ("x.tar.gz", lambda: gzip.compress(tar(("a", {}), content=bytes(range(256)) * 400))[:-40]),
    "no archive": ("x.zip", lambda: b"PK or not"),
}


@pytest.mark.parametrize("name", EVIL)
def test_evil_archives_are_refused_and_leave_nothing(tmp_path: Path, name: str) -> None:
    file, make = EVIL[name]
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    (inside / file).write_bytes(make())
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError) as caught:
        unpack(inside / file, inside / "out", max_files=50, max_bytes=1_000_000)
    assert str(inside / file) in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("file", ["x.tar", "x.tar.gz", "x.tgz", "x.tar.bz2", "x.tar.xz", "x.zip"])
def test_good_archives_are_unpacked(tmp_path: Path, file: str) -> None:
    """Without it the test above could pass because everything is refused."""
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("a")
    (tmp_path / "in" / "sub" / "b.txt").write_text("b" * 100_000)
    if file == "x.zip":
        with zipfile.ZipFile(tmp_path / file, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted((tmp_path / "in").rglob("*")):
                archive.write(path, path.relative_to(tmp_path / "in"))
    else:
        with tarfile.open(
            tmp_path / file, "w" if file == "x.tar" else "w:" + {"tgz": "gz"}.get(file[2:], file[6:])
        ) as tarred:  # type: ignore[call-overload]
            tarred.add(tmp_path / "in", arcname=".")
    assert is_archive(tmp_path / file)
    assert unpack(tmp_path / file, tmp_path / "out") == 2
    assert (tmp_path / "out" / "a.txt").read_text() == "a"
    assert (tmp_path / "out" / "sub" / "b.txt").read_text() == "b" * 100_000
    with pytest.raises(InputError, match="exists already"):
        unpack(tmp_path / file, tmp_path / "out")
    assert not is_archive(Path("train.json.gz"))
