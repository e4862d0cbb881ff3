"""Unpacks untrusted tar and zip archives: plain files and folders only, inside the target only, up to a count
and a size.

Any other entry refuses the whole archive; nothing of it stays.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, cast

from dpr.core.errors import InputError
from dpr.storage.durable import durable_folder

MAX_FILES = 100_000
MAX_BYTES = 200 * 10**9
# tarfile reads a header block at once, whatever size it claims.
_LONGEST_READ = 4 * 2**20
_COPY = 2**20
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    OSError,
    ValueError,
)
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}


class _Entry(NamedTuple):
    """``content`` is None for a folder; ``fault`` says why an entry is not unpacked at all."""

    name: str
    size: int
    content: IO[bytes] | None
    fault: str = ""


def is_archive(path: Path) -> bool:
    """Whether the name is that of an archive. (A single gzip file is not one: all readers unpack it.)"""
    return path.name.endswith((".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"))


def unpack(archive: Path, folder: Path, *, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> int:
    """Unpacks an archive as ``folder``, which appears complete or not at all. Returns the number of files.

    Raises:
        InputError: an entry that leaves the folder, is a link or a device, is encrypted, or appears twice;
            too many files or bytes; a damaged archive; ``folder`` exists.
    """
    entries = _zip_entries(archive) if archive.name.endswith(".zip") else _tar_entries(archive)
    with durable_folder(folder, metadata={"kind": "unpacked archive", "archive": archive.name}) as temporary:
        try:
            with closing(entries):
                return _unpack(entries, temporary, archive, max_files, max_bytes)
        except InputError:
            raise
        except _DAMAGED as error:
            raise InputError(f"cannot be unpacked ({error})", file=archive) from None


def _unpack(entries: Iterator[_Entry], folder: Path, archive: Path, max_files: int, max_bytes: int) -> int:
    names: set[str] = set()
    left, count = max_bytes, 0
    for name, size, content, fault in entries:
        parts = PurePosixPath(name).parts
        plain = "/".join(parts)
        if not fault and (
            name.startswith("/")
            or not name
            or ".." in parts
            or "\\" in name
            or "\0" in name
            or ":" in "".join(parts[:1])
        ):
            fault = "leads out of the folder"
        elif not fault and plain == "manifest.json":
            fault = "has a name that this toolkit uses"
        elif not fault and content is not None and (plain in names or not parts):
            fault = "appears twice"
        if fault:
            raise InputError(
                f"the entry {name[:200]!a} {fault}", file=archive, expected="plain files and folders"
            )
        names.add(plain)
        if len(names) > max_files:
            raise InputError(f"more than {max_files:,} entries", file=archive)
        target = folder / plain
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with content, open(target, "xb") as out:
            while left >= size and (
                chunk := content.read(_COPY)
            ):  # which may be more than the archive states
                left, size = left - len(chunk), max(0, size - len(chunk))
                out.write(chunk)
        if left < size:
            raise InputError(f"unpacks to more than {max_bytes:,} bytes", file=archive)
        count += 1
    return count


def _tar_entries(archive: Path) -> Generator[_Entry]:
    with open(archive, "rb") as raw:
        opener = _OPENERS.get(raw.read(2), open)
    with (
        opener(archive, "rb") as stream,
        tarfile.open(fileobj=cast(IO[bytes], _ShortReads(stream, archive)), mode="r:") as tar,
    ):
        for member in tar:
            cast(Any, tar).members = []  # otherwise a million headers stay in memory
            is_plain = member.isdir() or (member.isfile() and not member.issparse())
            content = tar.extractfile(member) if is_plain and member.isfile() else None
            yield _Entry(
                member.name,
                member.size if content else 0,
                content,
                "" if is_plain else "is a link, a device or the like",
            )


class _ShortReads:
    """A stream that refuses to read large blocks at once."""

    def __init__(self, stream: IO[bytes], archive: Path) -> None:
        self._stream, self._archive = stream, archive
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LONGEST_READ:
            raise InputError(
                f"a header of {size:,} bytes", file=self._archive, expected=f"at most {_LONGEST_READ:,}"
            )
        return self._stream.read(size)


def _zip_entries(archive: Path) -> Generator[_Entry]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            is_plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            fault = (
                "is a link, a device or the like"
                if not is_plain
                else "is encrypted"
                if info.flag_bits & 1
                else ""
            )
            content = None if fault or info.is_dir() else opened.open(info)
            # orig_filename is the name in the archive; filename is cut at a NUL.
            yield _Entry(info.orig_filename, info.file_size, content, fault)
