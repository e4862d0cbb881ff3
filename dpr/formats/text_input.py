"""Text files of users: plain or gzip (recognised by content), UTF-8 with or without BOM, any newline; errors
name file and line."""

from __future__ import annotations

import glob
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.paths import matching_paths as matching_paths
from dpr.core.paths import odd_kind

logger = get_logger(__name__)

MAX_LINE_BYTES = 16 * 2**20
BOM = b"\xef\xbb\xbf"
_BUFFER = 2**20
_warned: set[tuple[Path, str]] = set()
_UNPACK = "unpack it first"
# Where in a file and by which bytes content is told that is not text, what it is, and what to do.
_OTHER_CONTENT = (
    (0, b"PK\x03\x04", "a zip archive (.zip, .xlsx, .docx)", "unpack it, or save the table as text"),
    (4, b"1AY&SY", "packed by bzip2", _UNPACK),
    (0, b"\xfd7zXZ\0", "packed by xz", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "packed by zstd", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (0, b"\x1f\x8b", "packed twice by gzip", _UNPACK),
    (257, b"ustar\0", "a tar archive", _UNPACK),
    (257, b"ustar  \0", "a tar archive", _UNPACK),
    (0, b"PAR1\x15", "a Parquet file", "give it a name that ends in .parquet"),
    (0, b"ARROW1\0\0", "an Arrow file", "save it as .parquet"),
    (0, b"%PDF-", "a PDF", "dpr prepare reads folders of documents"),
    (0, b"\xd0\xcf\x11\xe0", "a document of Excel or Word", "save the table as text"),
    (0, b"SQLite format 3\0", "a database of SQLite", "write its rows as JSON lines"),
    (0, b"\x93NUMPY", "an array of numpy", None),
    (0, b"\x89HDF", "an HDF5 file", "write its rows as JSON lines"),
    (0, b"\xff\xfe", "in UTF-16", "save it as UTF-8"),
    (0, b"\xfe\xff", "in UTF-16", "save it as UTF-8"),
    (0, b"version https://git-lfs", "a pointer of Git LFS to the file", "git lfs pull fetches it"),
)
_MAGIC_BYTES = 265
_NUL_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def expand_files(files: str | Path | Sequence[str | Path]) -> list[Path]:
    """The paths that paths and patterns stand for, in the order given.

    Raises:
        InputError: no such file, or a pattern that matches nothing.
    """
    paths: list[Path] = []
    for item in [files] if isinstance(files, str | Path) else files:
        matches = matching_paths(item)
        if not matches:
            raise InputError(
                "this pattern matches no file" if glob.has_magic(str(item)) else "no such file", file=item
            )
        paths += matches
    if not paths:
        raise InputError("an empty list of files", expected="at least one path or pattern")
    return paths


@contextmanager
def located(file: Path, line: int) -> Iterator[None]:
    """A block whose ValueError becomes an InputError of this line."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error), file=file, line=line) from None


@contextmanager
def open_input(path: Path) -> Iterator[io.BufferedReader]:
    """Opens a file for reading, unpacking gzip.

    Raises:
        InputError: also from inside the block, when reading fails or the gzip data is damaged.
    """
    if kind := odd_kind(path):
        raise InputError(f"is {kind}", file=path, expected="a file", hint="write its content to a file first")
    try:
        with open(path, "rb", buffering=0) as raw:
            stream: io.BufferedReader[Any] = io.BufferedReader(raw, _BUFFER)
            if stream.peek(2)[:2] == b"\x1f\x8b":
                stream = io.BufferedReader(gzip.GzipFile(fileobj=stream), _BUFFER)
            refuse_other_content(stream.peek(_MAGIC_BYTES)[:_MAGIC_BYTES], path)
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"gzip data is damaged or cut off ({error})",
            file=path,
            hint="download or compress the file again",
        ) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None


def refuse_other_content(head: bytes, path: Path) -> None:
    """Raises InputError where a file begins as one of another kind does, whatever its name says."""
    for place, mark, what, hint in _OTHER_CONTENT:
        if head.startswith(mark, place):
            raise InputError(f"is {what}, not text in UTF-8", file=path, hint=hint)


def iter_raw_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
    """Line number, bytes without the newline, and whether the line is longer than MAX_LINE_BYTES (then only
    its start is given)."""
    number = 1
    while line := stream.readline(MAX_LINE_BYTES + 2):
        too_long = len(line) > MAX_LINE_BYTES and not line.endswith(b"\n")
        if too_long:
            while (rest := stream.readline(_BUFFER)) and not rest.endswith(b"\n"):
                pass
            line = line[:1024]
        if number == 1:
            line = line.removeprefix(BOM)
        yield number, line.removesuffix(b"\n").removesuffix(b"\r"), too_long
        number += 1


def decode_line(line: bytes, too_long: bool, file: Path, number: int, column: int = 0) -> str:
    """The text of a raw line, before which ``column`` bytes were left out; InputError if it is longer than
    MAX_LINE_BYTES or not UTF-8."""
    if too_long:
        raise InputError(
            f"the line is longer than {MAX_LINE_BYTES // 2**20} MB",
            file=file,
            line=number,
            hint="is this the right file?",
        )
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        number, column = after(line[: error.start], number, column)
        found = f"byte {column + 1} of the line (0x{line[error.start]:02x}) is not UTF-8"
        raise InputError(found, file=file, line=number, hint="save the file as UTF-8") from None


def after(passed: bytes, line: int, column: int) -> tuple[int, int]:
    """The line, and how many of its bytes are behind, where bytes were passed from such a place on."""
    newline = passed.rfind(b"\n")
    if newline < 0:
        return line, column + len(passed)
    return line + passed.count(b"\n"), len(passed) - newline - 1


def iter_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a file, without newline. NUL characters become spaces, with one warning.

    Raises:
        InputError: a line is not UTF-8 or too long; the file cannot be read.
    """
    nul = NulWarning(path)
    with open_input(path) as stream:
        for number, raw, too_long in iter_raw_lines(stream):
            yield number, nul.replace(decode_line(raw, too_long, path, number), number)


class NulWarning:
    """Replaces NUL characters by spaces, with one warning per file: C libraries and fixed-width ids end at a
    NUL."""

    def __init__(self, path: Path) -> None:
        self._path: Path | None = path

    def replace(self, text: str, line: int) -> str:
        if "\0" not in text:
            return text
        self._warn(line)
        return text.replace("\0", " ")

    def replace_in_json(self, text: str, line: int) -> str:
        """Also replaces NULs that are written as escapes; every character keeps its position."""
        if "\\u0000" in text:
            escaped, count = _NUL_ESCAPE.subn(r"\1\\u0020", text)
            if count:
                self._warn(line)
                text = escaped
        return self.replace(text, line)

    def _warn(self, line: int) -> None:
        if self._path is not None:
            logger.warning("%s:%d: NUL characters are read as spaces", self._path, line)
            self._path = None


def warn_of_file(path: Path, line: int, message: str) -> None:
    """Warns of a line, once in a process for a file and kind of message, whatever its numbers."""
    key = path, re.sub(r"\d+", "", message)
    if key not in _warned:
        _warned.add(key)
        logger.warning("%s:%d: %s", path, line, message)


def has_lone_surrogate(text: str) -> bool:
    """True where JSON escapes left half of a character, which no UTF-8 file can hold."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
