"""Files whose rows are records with named fields. JSON arrays and JSON lines are read as a stream of records
with line numbers, never as a whole; Parquet and Arrow by arrow_files."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.formats.text_input import (
    BOM,
    MAX_LINE_BYTES,
    after,
    decode_line,
    iter_raw_lines,
    open_input,
    without_nul,
)
from dpr.storage.untrusted import MAX_JSON_BYTES, STRICT, TooDeepError, describe, require_shallow

_WINDOW = 2**20
_JSON_SPACE = b" \t\r\n"
_SPACE = re.compile(r"[ \t\r\n]*")
_SHAPES = "a JSON array of objects, or one JSON object per line"
# Finds where a record of an array ends; what it holds is checked when it is read as a line is.
_LENIENT = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)


@dataclass(frozen=True, slots=True)
class JsonRecord:
    """A record that starts at ``line``: its ``value``, or ``error`` if it is not a valid JSON object. Reading
    can continue after it."""

    line: int
    value: dict[str, Any]
    error: InputError | None = None


def iter_json_records(path: Path) -> Iterator[JsonRecord]:
    """Yields the records of a JSON array or of JSON lines, recognised by the first character, not by the
    name. Files are plain or gzip.

    Duplicate keys, NaN and Infinity, numbers of thousands of digits and too deep nesting are errors of their
    record. NUL characters become spaces, with one warning per file.

    Raises:
        InputError: an error that cannot be skipped: an unreadable file, an array that is not JSON or does not
        end, a file of another kind.
    """
    with open_input(path) as stream:
        head = stream.peek(_WINDOW).removeprefix(BOM)
        first = head.lstrip(_JSON_SPACE)[:1]
        if first == b"[":
            yield from _array_records(stream, path)
            return
        if first not in (b"{", b""):
            line = head.partition(first)[0].count(b"\n") + 1
            found = f"starts with {first.decode('latin-1')!r}"
            raise InputError(found, file=path, line=line, expected=_SHAPES)
        for line, raw, too_long in iter_raw_lines(stream):
            if raw.strip(_JSON_SPACE):
                yield _record(raw, path, line, 0, too_long)


def iter_json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields line and value of every record, as ``iter_json_records``. The first bad record raises its
    InputError."""
    for record in iter_json_records(path):
        if record.error is not None:
            raise record.error
        yield record.line, record.value


def read_json_object(path: Path) -> dict[str, Any]:
    """Returns the one JSON object that a file holds, plain or gzip, with the checks of a record.

    Raises:
        InputError: it is not one, larger than MAX_JSON_BYTES, or the file cannot be read.
    """
    with open_input(path) as stream:
        content = stream.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise InputError(
            f"has more than {MAX_JSON_BYTES:,} bytes", file=path, expected="a smaller JSON object"
        )
    record = _record(content.removeprefix(BOM), path, 1, 0)
    if record.error is not None:
        raise record.error
    return record.value


def indented_record(value: dict[str, Any]) -> str:
    """Returns a record as an element of an array written piece by piece: indented by 4, with a newline before
    it."""
    # Newlines inside strings are escaped; str.splitlines would also split at U+2028, which is not.
    return ("\n" + json.dumps(value, indent=4, ensure_ascii=False)).replace("\n", "\n    ")


def _record(raw: bytes, path: Path, line: int, column: int, too_long: bool = False) -> JsonRecord:
    """Returns the record in these bytes, which follow ``column`` other bytes of their line."""
    text = ""
    value: Any = {}
    error = None
    try:
        text = without_nul(decode_line(raw, too_long, path, line, column), path, line, is_json=True)
        require_shallow(text)
        value = STRICT.decode(text)
        if not isinstance(value, dict):
            raise ValueError(f"the row is {describe(value)}, expected an object")
    except InputError as problem:
        error = problem
    except json.JSONDecodeError as problem:
        at_line, at_column = after(text[: problem.pos].encode(), line, column)
        found = f"not JSON: {problem.msg.removesuffix(' at')} at column {at_column + 1}"
        error = InputError(found, file=path, line=at_line)
    except ValueError as problem:
        error = InputError(str(problem), file=path, line=line)
    return JsonRecord(line, value, error)


def _array_records(stream: io.BufferedReader, path: Path) -> Iterator[JsonRecord]:
    """Yields the records of the array that a file holds.

    Raises:
        InputError: it is not JSON, does not end, is nested too deeply, or something follows it.
    """
    # Bytes that are not UTF-8 pass, and are an error of their record.
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    text = ""
    line = 1
    start = column = 0  # place where reading goes on, in ``text`` and in ``line``
    is_end = False

    def fill() -> None:
        """Reads more after the unread rest, as much again, so that trying again stays cheap."""
        nonlocal text, start, is_end
        data = stream.read(max(_WINDOW, len(text) - start))
        is_end = not data
        text = text[start:] + decoder.decode(data, final=is_end)
        start = 0

    def move(place: int) -> None:
        nonlocal start, line, column
        line, column = after(text[start:place].encode(errors="surrogateescape"), line, column)
        start = place

    def fail(found: str, hint: str | None = None) -> InputError:
        return InputError(found, file=path, line=line, hint=hint)

    def sign(passed: int = 0) -> str:
        """Skips this many characters and white space. Returns the next character, empty at the end of the
        file."""
        move(start + passed)
        while True:
            move(_SPACE.match(text, start).end())  # type: ignore[union-attr]  # it matches everywhere
            if start < len(text) or is_end:
                return text[start : start + 1]
            fill()

    sign()
    following = sign(1)  # after the bracket
    while following != "]":
        while True:  # until the end of the record is in sight
            try:
                end = _LENIENT.raw_decode(text, start)[1]
                if end < len(text) or is_end:
                    break
            except RecursionError:
                raise fail(str(TooDeepError())) from None
            except json.JSONDecodeError as error:
                if is_end and not text.rstrip().endswith(("]", "}")):
                    raise fail("the file ends inside the array", "it may be cut off") from None
                if is_end or len(text) - start > MAX_LINE_BYTES:
                    found = f"not JSON: {error.msg.removesuffix(' at')}"
                    move(error.pos)
                    hint = "the file may be cut off, or a string not closed"
                    raise fail(f"{found} at column {column + 1}", hint) from None
            fill()
        yield _record(text[start:end].encode(errors="surrogateescape"), path, line, column)
        move(end)
        following = sign()
        if following == ",":
            following = sign(1)
        elif not following:
            raise fail("the file ends inside the array", "it may be cut off")
        elif following != "]":
            raise fail(f"not JSON: {following!r} after a record")

    if following := sign(1):
        raise fail(f"{following!r} after the end of the array, expected nothing")


def is_json_name(path: str | Path) -> bool:
    """True if a file name is that of JSON, with or without ``.gz``."""
    return str(path).lower().removesuffix(".gz").endswith((".jsonl", ".json", ".ndjson"))


def is_csv_name(path: Path) -> bool:
    """True if commas may separate the columns of a file of this name, with or without ``.gz``."""
    return path.name.lower().removesuffix(".gz").endswith(".csv")


def has_records(path: Path) -> bool:
    """True if a corpus of this name holds records with named fields (JSON, Parquet or Arrow) and is not a
    table."""
    return is_json_name(path) or path.suffix.lower() in (".parquet", ".arrow") or path.is_dir()


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Returns line and value of every record of such a file, in the order of its passages."""
    if is_json_name(path):
        return iter_json_objects(path)
    from dpr.formats.arrow_files import arrow_rows  # for this format alone

    return ((number, value) for _, number, value in arrow_rows(path))
