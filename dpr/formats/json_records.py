"""JSON arrays and JSON lines as a stream of records with line numbers; the whole file is never in memory.

An array is parsed through a sliding window: one record is decoded at a time, and the window grows (up to the
limit for one record) only where a record does not end inside it.
"""

from __future__ import annotations

import codecs
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
    decode_line,
    iter_raw_lines,
    open_input,
)
from dpr.storage.strict_json import STRICT, TooDeepError, describe, require_shallow, shallow_part

_WINDOW = 2**20
_SPACE = re.compile(r"[ \t\n\r]*")
_LENIENT = json.JSONDecoder(parse_int=len)
_JSON_SPACE = b" \t\r\n"
_SHAPES = "a JSON array of objects, or one JSON object per line"


@dataclass(frozen=True, slots=True)
class JsonRecord:
    """A record that starts at ``line``: its ``value``, or ``error`` if it is not a valid JSON object (reading
    can continue after it)."""

    line: int
    value: dict[str, Any]
    error: InputError | None = None
    text: str = ""

    def sha256(self) -> str:
        """Hash of the record's text, to find it again."""
        return text_sha256(self.text)


def iter_json_records(path: Path, place: LinePlace | None = None) -> Iterator[JsonRecord]:
    """Records of a JSON array or of JSON lines, recognised by the first character, not by the name. Plain or
    gzip.

    JSON lines can be read from a later ``place`` on; of an array it says nothing.

    Duplicate keys, NaN and Infinity, numbers of thousands of digits and nesting too deep are errors of their
    record. NUL characters become spaces, with one warning per file.

    Raises:
        InputError: what cannot be skipped: an unreadable file, broken syntax inside an array, a file of
        another kind.
    """
    place = place or LinePlace()
    with open_input(path, place) as stream:
        if place.offset:
            yield from _line_records(stream, path, place)
            return
        line, first = skip_space(stream)
        if first == b"[":
            window = _Window(_decoded(stream, path, line), path, line)
            yield from _array_records(window)
            window.require_end("array")
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
        InputError: what cannot be skipped: an unreadable file, broken syntax, no such array.
    """
    with open_input(path) as stream:
        line, first = skip_space(stream)
        if first != b"{":
            found = f"starts with {first.decode('latin-1')!r}" if first else "is empty"
            raise InputError(found, file=path, line=line, expected=f"one JSON object with a list {key!r}")
        window = _Window(_decoded(stream, path, line), path, line)
        has_array = False
        for _ in window.items("}", "a member"):
            name, window.position, _ = window.decode()
            if not isinstance(name, str) or window.next_character() != ":":
                raise window.fail("not JSON: expected a key in quotes and ':'")
            window.position += 1
            if window.next_character() == "[" and name == key:
                has_array = True
                yield from _array_records(window)
            else:
                window.position = window.decode()[1]
        window.require_end("object")
        if not has_array:
            raise InputError(f"no list {key!r} in the object", file=path)


def parse_object(text: str) -> dict[str, Any]:
    """One JSON object; ValueError says what is wrong, without file and line."""
    require_shallow(text)
    try:
        value = STRICT.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg.removesuffix(' at')} at column {error.pos + 1}") from None
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
    for number, raw, too_long in iter_raw_lines(stream, place):
        if not raw.strip(_JSON_SPACE):
            continue
        text, value, error = raw.decode("latin-1"), {}, None
        try:
            text = nul.replace_in_json(decode_line(raw, too_long, path, number), number)
            value = parse_object(text)
        except InputError as problem:
            error = problem
        except ValueError as problem:
            error = InputError(str(problem), file=path, line=number)
        yield JsonRecord(number, value, error, text)


class _Window:
    """The part of the file's text that is in memory, and the current position in it."""

    def __init__(self, pieces: Iterator[str], path: Path, line: int) -> None:
        self._pieces, self.path, self._line, self._nul = pieces, path, line, NulWarning(path)
        self.text, self.position, self._counted, self._is_too_deep = "", 0, 0, False

    def grow(self, least: int = 1) -> bool:
        """Adds at least ``least`` characters and drops those before the position; False at the end of the
        file.

        Raises:
            InputError: what follows is nested too deeply.
        """
        if self._is_too_deep:
            raise self.fail(str(TooDeepError()))
        added: list[str] = []
        while least > 0 and (piece := next(self._pieces, "")):
            added.append(piece)
            least -= len(piece)
        self.line_at(self.position)
        # An escape may begin in one piece and end in the next.
        text = self._nul.replace_in_json("".join([self.text[self.position :], *added]), self._line)
        self.text = shallow_part(text)
        self._is_too_deep = len(self.text) < len(text)
        self.position = self._counted = 0
        return bool(added)

    def line_at(self, position: int) -> int:
        """Line number of a position at or after the last one asked for."""
        self._line += self.text.count("\n", self._counted, position)
        self._counted = position
        return self._line

    def next_character(self) -> str:
        """Moves to the next character that is not a space; empty at the end of the file."""
        while True:
            self.position = _SPACE.match(self.text, self.position).end()  # type: ignore[union-attr]
            if self.position < len(self.text):
                return self.text[self.position]
            if not self.grow():
                return ""

    def items(self, close: str, item: str) -> Iterator[None]:
        """Moves to each item of the array or object at the position, past which the caller has to move, then
        past its ``close``."""
        self.next_character()
        self.position += 1
        character = self.next_character()
        while character != close:
            if not character:
                raise self.cut_off()
            yield
            character = self.next_character()
            if character == ",":
                self.position += 1
                character = self.next_character()
                if character == close:
                    raise self.fail(f"not JSON: a comma before the closing {close!r}")
            elif character not in ("", close):
                raise self.fail(f"not JSON: {character!r} after {item}, expected ',' or {close!r}")
        self.position += 1

    def decode(self) -> tuple[Any, int, str | None]:
        """The value at the position, where it ends, and what is wrong with it where its end is known
        nevertheless."""
        at_end, error, decoder = False, None, STRICT
        while True:
            start = self.position
            try:
                value, end = decoder.raw_decode(self.text, start)
            except json.JSONDecodeError as problem:
                # Errors caused by the window's end are at its end (the longest token that can be cut there is
                # -Infinity or \uXXXX\uXXXX), except for a string, whose error is where it starts.
                may_be_cut = (
                    problem.msg.startswith("Unterminated string") or problem.pos >= len(self.text) - 16
                )
                if not at_end and may_be_cut:
                    if len(self.text) - start > MAX_LINE_BYTES:
                        found = f"no end of this record within {MAX_LINE_BYTES // 2**20} MB"
                        raise self.fail(found, hint="a string may not be closed") from None
                    at_end = not self.grow(len(self.text) - start)
                    continue
                if at_end and problem.pos >= len(self.text):
                    raise self.cut_off() from None
                found = problem.msg.removesuffix(" at").removesuffix(" starting")
                hint = (
                    "the file may be cut off"
                    if at_end and problem.msg.startswith("Unterminated string")
                    else None
                )
                raise self.fail(f"not JSON: {found}", problem.pos, hint) from None
            except ValueError as problem:
                error, decoder = str(problem), _LENIENT
                continue
            if end == len(self.text) and not isinstance(value, dict) and not at_end:
                at_end = not self.grow(_WINDOW)
                continue
            return value, end, error

    def require_end(self, of: str) -> None:
        if character := self.next_character():
            raise self.fail(f"{character!r} after the end of the {of}, expected nothing")

    def cut_off(self) -> InputError:
        return self.fail("the file ends inside the array", len(self.text), hint="it may be cut off")

    def fail(self, found: str, position: int | None = None, hint: str | None = None) -> InputError:
        line = self.line_at(self.position if position is None else position)
        return InputError(found, file=self.path, line=line, hint=hint)


def _array_records(window: _Window) -> Iterator[JsonRecord]:
    """Records of the array at the window's position. One whose end is not known cannot be skipped."""
    for _ in window.items("]", "a record"):
        value, end, error = window.decode()
        start = window.position
        if end - start > MAX_LINE_BYTES:
            error = f"the record is longer than {MAX_LINE_BYTES // 2**20} MB"
        elif error is None and not isinstance(value, dict):
            error = f"the row is {describe(value)}, expected an object"
        line = window.line_at(start)
        window.position = end
        problem = InputError(error, file=window.path, line=line) if error else None
        yield JsonRecord(line, {} if error else value, problem, window.text[start:end])


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


def _decoded(stream: io.BufferedReader, path: Path, line: int) -> Iterator[str]:
    """The stream's text in pieces."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    start_of_line = 0  # bytes of the current line before this chunk
    while True:
        chunk = stream.read(_WINDOW)
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            before = error.object[: error.start]
            line += before.count(b"\n")
            column = (
                error.start - before.rfind(b"\n")
                if b"\n" in before
                else start_of_line - pending + error.start + 1
            )
            found = f"byte {column} of the line (0x{error.object[error.start]:02x}) is not UTF-8"
            raise InputError(found, file=path, line=line, hint="save the file as UTF-8") from None
        if not chunk:
            return
        # a piece that ends inside a character may give nothing yet, and an empty piece would read as the end
        if text:
            yield text
        line += chunk.count(b"\n")
        newline = chunk.rfind(b"\n")
        start_of_line = len(chunk) - newline - 1 if newline >= 0 else start_of_line + len(chunk)
