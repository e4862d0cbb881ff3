"""Pickle streams read as data: a small stack machine of its own that imports nothing, calls nothing and builds no foreign object.

Python's unpickler calls what a file names. Here a name becomes a ``Name``, an object of a named class a ``Record`` of its arguments and
state, and both only if the caller's allow-list has them. Every length is held against the bytes that are left before anything is
allocated, so memory grows with the size of the file and not with what it claims.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

MAX_INTEGER_BYTES = 64
MAX_LINE_BYTES = 1 << 16
HIGHEST_PROTOCOL = 5


@dataclass(frozen=True, slots=True)
class Name:
    """A module's member that the stream names. Only a name."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False, repr=False)
class Record:
    """What would have been an object: the class or function named, its arguments, its state, and what was put into it."""

    of: Name
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)


class MalformedPickle(ValueError):
    """The stream is damaged, too large, or asks for something that is not read here."""


_MARK = object()

Opcode = Callable[["InertReader"], None]


class InertReader:
    """Reads consecutive pickles of a file.

    Args:
        allowed: whether a name may occur at all.
        made: turns a call (name, arguments) into a value; None stands for "a Record".
        reference: turns a persistent id into a value; without it such ids are refused.
        limit: bytes that may be read in all.
    """

    def __init__(
        self,
        file: IO[bytes],
        *,
        limit: int,
        allowed: Callable[[Name], bool],
        made: Callable[[Name, tuple[Any, ...]], Any] | None = None,
        reference: Callable[[Any], Any] | None = None,
    ) -> None:
        self._file, self.left = file, limit
        self._allowed, self._made, self._reference = allowed, made, reference
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def load(self) -> Any:
        """The next pickle.

        Raises:
            MalformedPickle: it is damaged, or not of plain data and allowed names.
        """
        self.stack, self.memo = [], {}
        try:
            while (code := self.read(1)) != b".":
                operation = _OPERATIONS.get(code)
                if operation is None:
                    raise MalformedPickle(f"operation {code!r} is not read here")
                operation(self)
            (value,) = self.stack
        except MalformedPickle:
            raise
        except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
            raise MalformedPickle(f"damaged ({type(error).__name__})") from None
        if value is _MARK:
            raise MalformedPickle("damaged (no value)")
        self.stack, self.memo = [], {}
        return value

    def read(self, count: int) -> bytes:
        """Exactly ``count`` bytes; refused before anything is allocated where fewer are left."""
        if count > self.left:
            raise MalformedPickle(f"{count} bytes are announced, {self.left} are left")
        data = self._file.read(count)
        if len(data) != count:
            raise MalformedPickle("the file ends too early")
        self.left -= count
        return data

    def line(self) -> bytes:
        """Up to the next line feed, which is dropped."""
        data = self._file.readline(min(MAX_LINE_BYTES, self.left) + 1)
        if not data.endswith(b"\n"):
            raise MalformedPickle("a line without an end")
        self.left -= len(data)
        return data[:-1]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.read(struct.calcsize(form)))[0]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise MalformedPickle("damaged (a mark where a value belongs)")
        return value

    def pop_mark(self) -> list[Any]:
        """The values above the last mark; the mark goes too."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise MalformedPickle("damaged (no mark)")
        values = self.stack[place + 1 :]
        del self.stack[place:]
        return values

    def name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise MalformedPickle("a name that is no text")
        found = Name(module, name)
        if not self._allowed(found):
            raise MalformedPickle(f"names {str(found)[:120]!r}, which has no place in such a file")
        self.push(found)

    def call(self, of: Any, arguments: Any) -> None:
        if not isinstance(of, Name) or not isinstance(arguments, tuple):
            raise MalformedPickle("calls something that is no name")
        value = None if self._made is None else self._made(of, arguments)
        self.push(Record(of, arguments) if value is None else value)

    def build(self) -> None:
        state = self.pop()
        target = self.stack[-1]
        if isinstance(target, Record):
            target.state = state
        elif not isinstance(target, dict):  # a plain dict stands for an OrderedDict, whose attributes nobody needs
            raise MalformedPickle("gives a state to something that has none")

    def put_items(self, flat: list[Any]) -> None:
        target = self.stack[-1]
        items = target.items if isinstance(target, Record) else target
        if not isinstance(items, dict) or len(flat) % 2:
            raise MalformedPickle("damaged (items of no dictionary)")
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            # Only these hash in constant time; nested tuples would not.
            if key is not None and not isinstance(key, str | int | float | bytes | Name):
                raise MalformedPickle(f"a {type(key).__name__} as key")
            items[key] = value

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Record):
            target.items.update((len(target.items) + place, value) for place, value in enumerate(values))
        elif isinstance(target, list):
            target.extend(values)
        else:
            raise MalformedPickle("damaged (appends to no list)")

    def persistent(self, value: Any) -> None:
        if self._reference is None:
            raise MalformedPickle("refers to something outside")
        self.push(self._reference(value))


def _protocol(reader: InertReader) -> None:
    if (protocol := reader.number("<B")) > HIGHEST_PROTOCOL:
        raise MalformedPickle(f"pickle protocol {protocol} is unknown")


def _long(reader: InertReader, count: int) -> None:
    if not 0 <= count <= MAX_INTEGER_BYTES:
        raise MalformedPickle(f"an integer of {count} bytes")
    reader.push(int.from_bytes(reader.read(count), "little", signed=True))


def _int_line(reader: InertReader) -> None:
    text = reader.line()
    if len(text) > 2 * MAX_INTEGER_BYTES:
        raise MalformedPickle("an integer that long")
    reader.push({b"00": False, b"01": True}.get(text) if text in (b"00", b"01") else int(text.rstrip(b"L")))


def _text(form: str) -> Opcode:
    return lambda reader: reader.push(str(reader.read(reader.number(form)), "utf-8", "surrogatepass"))


def _bytes(form: str) -> Opcode:
    return lambda reader: reader.push(reader.read(reader.number(form)))


def _tuple(count: int) -> Opcode:
    def operation(reader: InertReader) -> None:
        values = [reader.pop() for _ in range(count)]
        reader.push(tuple(reversed(values)))

    return operation


def _new_object(reader: InertReader) -> None:
    arguments, of = reader.pop(), reader.pop()
    reader.call(of, arguments)


def _stack_name(reader: InertReader) -> None:
    name, module = reader.pop(), reader.pop()
    reader.name(module, name)


def _item(reader: InertReader) -> None:
    value, key = reader.pop(), reader.pop()
    reader.put_items([key, value])


def _add_items(reader: InertReader) -> None:
    # A set is kept as a list: nothing that is read here asks whether something is in it.
    values = reader.pop_mark()
    reader.append(values)


def _dictionary(reader: InertReader) -> None:
    flat = reader.pop_mark()
    reader.push({})
    reader.put_items(flat)


def _memoize(key: Callable[[InertReader], int]) -> Opcode:
    def operation(reader: InertReader) -> None:
        place, value = key(reader), reader.stack[-1]
        if value is _MARK or place < 0:
            raise MalformedPickle("damaged (a mark in the memo)")
        reader.memo[place] = value

    return operation


def _recall(key: Callable[[InertReader], int]) -> Opcode:
    return lambda reader: reader.push(reader.memo[key(reader)])


def _drop_mark(reader: InertReader) -> None:
    reader.pop_mark()


def _append(reader: InertReader) -> None:
    value = reader.pop()
    reader.append([value])


def _global(reader: InertReader) -> None:
    module, name = str(reader.line(), "utf-8"), str(reader.line(), "utf-8")
    reader.name(module, name)


_OPERATIONS: dict[bytes, Opcode] = {
    b"\x80": _protocol,
    b"\x95": lambda reader: reader.number("<Q"),  # a frame: only a hint for reading ahead
    b"(": lambda reader: reader.push(_MARK),
    b"0": lambda reader: reader.stack.pop(),
    b"1": _drop_mark,
    b"N": lambda reader: reader.push(None),
    b"\x88": lambda reader: reader.push(True),
    b"\x89": lambda reader: reader.push(False),
    b"I": _int_line,
    b"L": _int_line,
    b"J": lambda reader: reader.push(reader.number("<i")),
    b"K": lambda reader: reader.push(reader.number("<B")),
    b"M": lambda reader: reader.push(reader.number("<H")),
    b"\x8a": lambda reader: _long(reader, reader.number("<B")),
    b"\x8b": lambda reader: _long(reader, reader.number("<i")),
    b"F": lambda reader: reader.push(float(reader.line())),
    b"G": lambda reader: reader.push(reader.number(">d")),
    b"V": lambda reader: reader.push(str(reader.line(), "raw-unicode-escape")),
    b"X": _text("<I"),
    b"\x8c": _text("<B"),
    b"\x8d": _text("<Q"),
    b"B": _bytes("<I"),
    b"C": _bytes("<B"),
    b"\x8e": _bytes("<Q"),
    b"\x96": _bytes("<Q"),
    b")": lambda reader: reader.push(()),
    b"\x85": _tuple(1),
    b"\x86": _tuple(2),
    b"\x87": _tuple(3),
    b"t": lambda reader: reader.push(tuple(reader.pop_mark())),
    b"]": lambda reader: reader.push([]),
    b"l": lambda reader: reader.push(reader.pop_mark()),
    b"a": _append,
    b"e": lambda reader: reader.append(reader.pop_mark()),
    b"}": lambda reader: reader.push({}),
    b"d": _dictionary,
    b"s": _item,
    b"u": lambda reader: reader.put_items(reader.pop_mark()),
    b"\x8f": lambda reader: reader.push([]),
    b"\x90": _add_items,
    b"\x91": lambda reader: reader.push(reader.pop_mark()),
    b"p": _memoize(lambda reader: int(reader.line())),
    b"q": _memoize(lambda reader: int(reader.number("<B"))),
    b"r": _memoize(lambda reader: int(reader.number("<I"))),
    b"\x94": _memoize(lambda reader: len(reader.memo)),
    b"g": _recall(lambda reader: int(reader.line())),
    b"h": _recall(lambda reader: int(reader.number("<B"))),
    b"j": _recall(lambda reader: int(reader.number("<I"))),
    b"c": _global,
    b"\x93": _stack_name,
    b"R": _new_object,
    b"\x81": _new_object,
    b"b": lambda reader: reader.build(),
    b"Q": lambda reader: reader.persistent(reader.pop()),
}
"""Operations that make data. What calls by another road (INST, OBJ, NEWOBJ_EX), extension codes and outside buffers are missing."""
