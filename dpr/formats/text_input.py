"""Text files as they are read: lines, and YAML as plain values, never as objects. Errors name file and line."""

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

import yaml

from dpr.core.errors import InputError
from dpr.core.logs import WatchedFile, get_logger
from dpr.core.paths import matching_paths, odd_kind

logger = get_logger(__name__)
MAX_LINE_BYTES = 16 * 2**20
BOM = b"\xef\xbb\xbf"
_BUFFER = 2**20
_warned: set[Path] = set()
_UNPACK = "unpack it first"
# Position in a file, bytes there that identify content that is not text, its kind, and the hint.
_OTHER_CONTENT = (
    (0, b"PK\x03\x04", "a zip archive (.zip, .xlsx, .docx)", "unpack it, or save the table as text"),
    (4, b"1AY&SY", "compressed by bzip2", _UNPACK),
    (0, b"\xfd7zXZ\0", "compressed by xz", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd", _UNPACK),
    (0, b"\x1f\x8b", "compressed twice by gzip", _UNPACK),
    (257, b"ustar\0", "a tar archive", _UNPACK),
    (0, b"PAR1\x15", "a Parquet file", "give it a name that ends in .parquet"),
    (0, b"ARROW1\0\0", "an Arrow file", "save it as .parquet"),
    (0, b"%PDF-", "a PDF", "dpr prepare reads folders of documents"),
    (0, b"\xff\xfe", "in UTF-16", "save it as UTF-8"),
    (0, b"\xfe\xff", "in UTF-16", "save it as UTF-8"),
    (0, b"version https://git-lfs", "a pointer of Git LFS to the file", "git lfs pull fetches it"),
)
_MAGIC_BYTES = 265
_NUL_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_MOST_VALUES = 100_000  # values of a YAML file whose aliases stand for copies


def expand_files(files: str | Path | Sequence[str | Path]) -> list[Path]:
    """Returns the paths that paths and patterns stand for, in the order given.

    Raises:
        InputError: no such file, or a pattern that matches nothing.
    """
    paths: list[Path] = []
    for item in [files] if isinstance(files, str | Path) else files:
        found = matching_paths(item)
        if not found:
            missing = "this pattern matches no file" if glob.has_magic(str(item)) else "no such file"
            raise InputError(missing, file=item)
        paths += found
    if not paths:
        raise InputError("an empty list of files", expected="at least one path or pattern")
    return paths


@contextmanager
def located(file: Path, line: int) -> Iterator[None]:
    """Turns a ValueError of the block into an InputError of this line."""
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
        with WatchedFile(path) as raw:
            stream: io.BufferedReader[Any] = io.BufferedReader(raw, _BUFFER)
            if stream.peek(2)[:2] == b"\x1f\x8b":
                stream = io.BufferedReader(gzip.GzipFile(fileobj=stream), _BUFFER)
            head = stream.peek(_MAGIC_BYTES)
            for place, mark, what, hint in _OTHER_CONTENT:
                if head.startswith(mark, place):
                    raise InputError(f"is {what}, not text in UTF-8", file=path, hint=hint)
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"gzip data is damaged or cut off ({error})",
            file=path,
            hint="download or compress the file again",
        ) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None


def iter_raw_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
    """Yields line number, bytes without the newline, and True if the line is longer than MAX_LINE_BYTES. Only
    the start of such a line is given."""
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
    """Returns the text of a raw line from which ``column`` leading bytes were left out. Raises InputError if
    it is longer than MAX_LINE_BYTES or not UTF-8."""
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
    """Returns line and column after ``passed``, which begins at ``line`` and ``column``. A column is the
    number of the line's bytes before a place."""
    newline = passed.rfind(b"\n")
    if newline < 0:
        return line, column + len(passed)
    return line + passed.count(b"\n"), len(passed) - newline - 1


def iter_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the numbered lines of a file, without newline. NUL characters become spaces, with one warning.

    Raises:
        InputError: a line is not UTF-8 or too long; the file cannot be read.
    """
    with open_input(path) as stream:
        for number, raw, too_long in iter_raw_lines(stream):
            yield number, without_nul(decode_line(raw, too_long, path, number), path, number)


def without_nul(text: str, path: Path, line: int, *, is_json: bool = False) -> str:
    """Replaces NUL characters in a text by spaces, with ``is_json`` also those written as escapes. Warns once
    per file, since C libraries and fixed-width ids end at a NUL. Every character keeps its position."""
    plain = text.replace("\0", " ")
    if is_json and "\\u0000" in plain:
        plain = _NUL_ESCAPE.sub(r"\1\\u0020", plain)
    if plain != text and path not in _warned:
        _warned.add(path)
        logger.warning("%s:%d: NUL characters are read as spaces", path, line)
    return plain


def read_yaml(path: str | Path) -> Any:
    """Returns the value in a YAML file: mappings, lists, texts, numbers, true, false and null.

    Raises:
        InputError: missing, unreadable, or not such YAML; names the line.
    """
    file = Path(path)
    with open_input(file) as stream:
        content = stream.read()
    try:
        loader = yaml.SafeLoader(content.decode("utf-8-sig"))
        root = loader.get_single_node()
        if root is None:
            return None
        _count(root, {})
        return loader.construct_document(root)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"0x{content[error.start]:02x} is not UTF-8", file=file, line=line, hint="save the file as UTF-8"
        ) from None
    except yaml.MarkedYAMLError as error:
        found = ", ".join(filter(None, (error.context, error.problem)))
        mark = error.problem_mark
        raise InputError(f"not YAML: {found}", file=file, line=mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a date that does not exist
        raise InputError(f"not YAML: {str(error).splitlines()[0]}", file=file) from None


def _count(node: Any, sizes: dict[int, int]) -> int:
    """Returns the number of values in a node if every alias stands for a copy of the node it names. Raises
    YAMLError for a key that occurs twice."""
    if id(node) in sizes:
        return sizes[id(node)]
    sizes[id(node)] = _MOST_VALUES  # for an alias inside the node that it names
    size = 1
    lines: dict[str, int] = {}
    for child in node.value if isinstance(node, yaml.CollectionNode) else ():
        if isinstance(child, tuple):
            key, child = child
            name = str(key.value)
            if name in lines:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {name!r} is also in line {lines[name]}", problem_mark=key.start_mark
                )
            lines[name] = key.start_mark.line + 1
        size += _count(child, sizes)
        if size >= _MOST_VALUES:
            raise yaml.MarkedYAMLError(
                problem=f"its aliases expand to more than {_MOST_VALUES:,} values",
                problem_mark=child.start_mark,
            )
    sizes[id(node)] = size
    return size
