"""JSON arrays and JSON lines as a stream of records with line numbers; the whole file is never in memory.

An array is cut at the commas between its records, and each of these is read as a line is.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.hashes import text_sha256
from dpr.formats.text_input import (
    BOM,
    MAX_LINE_BYTES,
    LinePlace,
    NulWarning,
    after,
    decode_line,
    iter_raw_lines,
    open_input,
)
from dpr.storage.strict_json import MAX_DEPTH, STRICT, TooDeepError, describe, require_shallow

_WINDOW = 2**20
_JSON_SPACE = b" \t\r\n"
_SHAPES = "a JSON array of objects, or one JSON object per line"
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
# A string, an object that holds no other and no list, or one of the signs of JSON. A string that is cut off is its
# quote.
_PIECE = re.compile(rb'%s|\{(?:[^][{}"]++|%s)*+\}|[][{},"]' % (_STRING, _STRING), re.DOTALL)


@dataclass(frozen=True, slots=True)
class JsonRecord:
    """A record that starts at ``line``: its ``value``, or ``error`` if it is not a valid JSON object (reading
    can continue after it)."""

    line: int
    value: dict[str, Any]
    error: InputError | None = None
    text: str = ""

    def sha256(self) -> str:
        """Hash of the record's text, or of its values where it is none, to find it again."""
        return text_sha256(self.text or json.dumps(self.value, sort_keys=True, default=str))


def iter_json_records(path: Path, place: LinePlace | None = None) -> Iterator[JsonRecord]:
    """Records of a JSON array or of JSON lines, recognised by the first character, not by the name. Plain or
    gzip.

    JSON lines can be read from a later ``place`` on; of an array it says nothing.

    Duplicate keys, NaN and Infinity, numbers of thousands of digits and nesting too deep are errors of their
    record. NUL characters become spaces, with one warning per file.

    Raises:
        InputError: what cannot be skipped: an unreadable file, an array that does not end, a file of
        another kind.
    """
    place = place or LinePlace()
    with open_input(path, place) as stream:
        if place.offset:
            yield from _line_records(stream, path, place)
            return
        line, first = skip_space(stream)
        if first == b"[":
            yield from _array_records(stream, path, line)
        elif first == b"{":
            place.line, place.offset = line, stream.tell()
            yield from _line_records(stream, path, place)
        elif first:
            raise InputError(
                f"starts with {first.decode('latin-1')!r}", file=path, line=line, expected=_SHAPES
            )


def iter_json_objects(path: Path, place: LinePlace | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line and value of every record, as ``iter_json_records``; the first bad one raises its InputError."""
    for record in iter_json_records(path, place):
        if record.error is not None:
            raise record.error
        yield record.line, record.value


def iter_member_records(path: Path, key: str) -> Iterator[JsonRecord]:
    """Records of the array under ``key`` of the one JSON object that a file holds, as a stream; other members
    are skipped.

    Raises:
        InputError: what cannot be skipped: an unreadable file, an array that does not end, or none.
    """
    with open_input(path) as stream:
        line, first = skip_space(stream)
        if first != b"{":
            found = f"starts with {first.decode('latin-1')!r}" if first else "is empty"
            raise InputError(found, file=path, line=line, expected=f"one JSON object with a list {key!r}")
        yield from _array_records(stream, path, line, key)


def parse_object(text: str) -> dict[str, Any]:
    """One JSON object; ValueError says what is wrong, without file and line."""
    require_shallow(text)
    value = STRICT.decode(text)
    if not isinstance(value, dict):
        raise ValueError(f"the row is {describe(value)}, expected an object")
    return value


def indented_record(value: dict[str, Any]) -> str:
    """A record as an element of an array written piece by piece: indented by 4, with a newline before it."""
    # Newlines inside strings are escaped; str.splitlines would also split at U+2028, which is not.
    return ("\n" + json.dumps(value, indent=4, ensure_ascii=False)).replace("\n", "\n    ")


def is_finite_number(value: Any) -> bool:
    """Whether a JSON value is a number that a float can hold; JSON's integers are unbounded."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _line_records(stream: io.BufferedReader, path: Path, place: LinePlace) -> Iterator[JsonRecord]:
    nul = NulWarning(path)
    for line, raw, too_long in iter_raw_lines(stream, place):
        if raw.strip(_JSON_SPACE):
            yield _record(raw, path, line, 0, nul, too_long)


def _record(
    raw: bytes, path: Path, line: int, column: int, nul: NulWarning, too_long: bool = False
) -> JsonRecord:
    """The record in these bytes, which stand behind ``column`` others in their line."""
    text = raw.decode("latin-1")
    value: dict[str, Any] = {}
    error = None
    try:
        text = nul.replace_in_json(decode_line(raw, too_long, path, line, column), line)
        value = parse_object(text)
    except InputError as problem:
        error = problem
    except json.JSONDecodeError as problem:
        at_line, at_column = after(text[: problem.pos].encode(), line, column)
        found = f"not JSON: {problem.msg.removesuffix(' at')} at column {at_column + 1}"
        error = InputError(found, file=path, line=at_line)
    except ValueError as problem:
        error = InputError(str(problem), file=path, line=line)
    return JsonRecord(line, value, error, text)


def _array_records(stream: io.BufferedReader, path: Path, line: int, key: str = "") -> Iterator[JsonRecord]:
    """Records of the array that begins here, or of the one under ``key`` of the object that does.

    Raises:
        InputError: the array does not end, is nested too deeply, or something follows it.
    """
    nul = NulWarning(path)
    name = re.compile(rb'[ \t\r\n]*"%s"[ \t\r\n]*:[ \t\r\n]*' % re.escape(key.encode()))
    level = 2 if key else 1  # of the array
    depth = searched = 0
    is_inside = is_found = is_first = False
    data = b""  # from the item that is read on
    start = column = 0  # where this begins, in ``data`` and in ``line``

    def move(place: int) -> None:
        nonlocal start, line, column
        line, column = after(data[start:place], line, column)
        start = place

    def fail(found: str, hint: str | None = None) -> InputError:
        return InputError(found, file=path, line=line, hint=hint)

    while chunk := stream.read(_WINDOW):
        data = data[start:] + chunk
        searched -= start
        start = 0
        for piece in _PIECE.finditer(data, searched):
            sign = piece[0]
            if sign == b'"':
                break
            searched = piece.end()
            if sign in (b"[", b"{"):
                depth += 1
                if depth > MAX_DEPTH + level:
                    move(searched)
                    raise fail(str(TooDeepError()))
                if depth == level and (not key or name.fullmatch(data, start, piece.start())):
                    is_inside = is_found = is_first = True
                    move(searched)
                elif depth == 1:
                    move(searched)
                continue
            is_end = sign in (b"]", b"}")
            depth -= is_end
            if is_inside and depth == level - is_end and (is_end or sign == b","):
                item = data[start : piece.start()].strip(_JSON_SPACE)
                if len(item) > MAX_LINE_BYTES:
                    break  # and is refused below
                if item or not (is_end and is_first):
                    move(data.index(item, start) if item else piece.start())
                    yield _record(item, path, line, column, nul)
                if sign == b"}":
                    raise fail("not JSON: '}' closes a list")
                is_inside = not is_end
                is_first = False
                move(searched)
            elif depth == 1 and sign == b",":
                move(searched)
            if not depth:
                move(searched)
                _require_end(data[searched:], stream, path, line, "object" if key else "array")
                if key and not is_found:
                    raise InputError(f"no list {key!r} in the object", file=path)
                return
        if len(data) - start > MAX_LINE_BYTES:
            raise fail(
                f"no end of this record within {MAX_LINE_BYTES // 2**20} MB", "is a string not closed?"
            )
    move(len(data))
    raise fail("the file ends inside the array", "it may be cut off")


def _require_end(rest: bytes, stream: io.BufferedReader, path: Path, line: int, of: str) -> None:
    """Raises InputError where anything but white space follows."""
    while not (text := rest.lstrip(_JSON_SPACE)):
        line += rest.count(b"\n")
        rest = stream.read(_WINDOW)
        if not rest:
            return
    line += rest[: -len(text)].count(b"\n")
    found = f"{text[:1].decode('latin-1')!r} after the end of the {of}, expected nothing"
    raise InputError(found, file=path, line=line)


def skip_space(stream: io.BufferedReader) -> tuple[int, bytes]:
    """Line number and value of the first byte that is not a space, which stays unread; empty at the end of
    the file."""
    line = 1
    if stream.peek(len(BOM))[: len(BOM)] == BOM:
        stream.read(len(BOM))
    while ahead := stream.peek(1):
        rest = ahead.lstrip(_JSON_SPACE)
        passed = stream.read(len(ahead) - len(rest))
        line += passed.count(b"\n")
        if rest:
            return line, rest[:1]
    return line, b""
