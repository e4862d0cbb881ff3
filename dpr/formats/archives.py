"""Unpacking tar and zip archives of others: plain files and folders only, inside the target only, up to a count and a size.

The whole archive is refused at the first entry that is anything else; nothing of it stays. ``filter="data"`` of the standard library is
applied on top.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from dpr.core.errors import InputError
from dpr.formats.durable import durable_folder

MAX_FILES = 100_000
MAX_BYTES = 200 * 10**9
# A header block of tar is read at once, whatever size it says it has.
_LONGEST_READ = 4 * 2**20
_COPY = 2**20


def is_archive(path: Path) -> bool:
    """Whether the name is that of an archive (a single gzip file is none: all readers unpack it)."""
    return path.name.endswith((".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"))


def unpack(archive: Path, folder: Path, *, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> int:
    """Unpacks an archive as ``folder``, which appears complete or not at all. Returns the number of files.

    Raises:
        InputError: an entry that leaves the folder, is a link or a device, is encrypted, or appears twice; too many files or bytes; a
            damaged archive; ``folder`` exists.
    """
    unpacker = _unpack_zip if archive.name.endswith(".zip") else _unpack_tar
    with durable_folder(folder, metadata={"kind": "unpacked archive", "archive": archive.name}) as temporary:
        try:
            return unpacker(archive, temporary, _Limits(archive, max_files, max_bytes))
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError) as error:
            raise InputError(f"cannot be unpacked ({error})", file=archive) from None
        except (OSError, ValueError, UnicodeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"cannot be unpacked ({error})", file=archive) from None


class _Limits:
    """Counts entries and bytes, and refuses names that lead elsewhere."""

    def __init__(self, archive: Path, max_files: int, max_bytes: int) -> None:
        self._archive, self._max_files, self._max_bytes = archive, max_files, max_bytes
        self._names: set[str] = set()
        self._bytes = 0

    def refuse(self, name: str, why: str) -> InputError:
        return InputError(f"the entry {name[:200]!a} {why}", file=self._archive, expected="plain files and folders")

    def admit(self, name: str, size: int, *, is_file: bool) -> None:
        parts = PurePosixPath(name).parts
        if not parts and name and not is_file:
            return  # the folder itself, "./"
        if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or ":" in parts[0]:
            raise self.refuse(name, "leads out of the folder")
        plain = "/".join(parts)
        if plain == "manifest.json":
            raise self.refuse(name, "has a name that is ours")
        if is_file and plain in self._names:
            raise self.refuse(name, "appears twice")
        self._names.add(plain)
        if len(self._names) > self._max_files:
            raise InputError(f"more than {self._max_files:,} entries", file=self._archive)
        self.take(max(size, 0))

    def take(self, count: int) -> None:
        self._bytes += count
        if self._bytes > self._max_bytes:
            raise InputError(f"unpacks to more than {self._max_bytes:,} bytes", file=self._archive)


def _unpack_tar(archive: Path, folder: Path, limits: _Limits) -> int:
    count = 0
    with _tar_stream(archive) as stream, tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as tar:
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]  # otherwise a million headers stay in memory
            if not (member.isfile() or member.isdir()) or member.issparse():
                raise limits.refuse(member.name, "is a link, a device or the like")
            limits.admit(member.name, member.size, is_file=member.isfile())
            tar.extract(member, folder, set_attrs=False, filter="data")
            count += member.isfile()
    return count


@contextmanager
def _tar_stream(archive: Path) -> Iterator[_ShortReads]:
    openers: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
    with open(archive, "rb") as raw:
        opener = openers.get(raw.read(2))
    with opener(archive, "rb") if opener else open(archive, "rb") as stream:
        yield _ShortReads(stream, archive)


class _ShortReads:
    """A stream that refuses to be read by the gigabyte."""

    def __init__(self, stream: IO[bytes], archive: Path) -> None:
        self._stream, self._archive = stream, archive

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LONGEST_READ:
            raise InputError(f"a header of {size:,} bytes", file=self._archive, expected=f"at most {_LONGEST_READ:,}")
        return self._stream.read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        return self._stream.seek(position, whence)

    def tell(self) -> int:
        return self._stream.tell()


def _unpack_zip(archive: Path, folder: Path, limits: _Limits) -> int:
    count = 0
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            # orig_filename is what the archive says; filename is cut at a NUL.
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise limits.refuse(info.orig_filename, "is a link, a device or the like")
            if info.flag_bits & 1:
                raise limits.refuse(info.orig_filename, "is encrypted")
            limits.admit(info.orig_filename, info.file_size, is_file=not info.is_dir())
            target = folder / info.filename
            if info.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened.open(info) as source, open(target, "xb") as out:
                written = 0
                while chunk := source.read(_COPY):
                    written += len(chunk)
                    if written > info.file_size:
                        limits.take(len(chunk))  # more than the directory of the archive said
                    out.write(chunk)
            count += 1
    return count
