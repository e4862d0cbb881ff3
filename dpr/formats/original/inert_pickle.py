"""Pickles read by Python's unpickler, restricted so that a file can cause nothing to be imported or called.

A name in the stream becomes a subclass of ``Record``, made for this one reading, which keeps the arguments
and the state it is given; the caller's allow-list decides which names may occur at all. So ``Record`` classes
are all that a stream can call. Memory is bounded:

* ``load_vectors`` (the C unpickler, for files of gigabytes) first walks through the operations: only those
  that make numbers, texts, bytes, lists and tuples pass, a length may not exceed the bytes that are left, and
  a memo number not the count of operations.
* ``StructureReader`` (the Python unpickler, for at most 16 MB) reads dictionaries too. It checks every key
  before it is hashed: hashing tuples within tuples that share each other would never end.

Both need at most a few hundred bytes per operation, so memory grows with the size of the file and not with
what it claims.
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pickle import Unpickler, _Unpickler  # the restricted subclasses below are the only ones in the package
from typing import Any, ClassVar

MAX_STRUCTURE_BYTES = 16 << 20
_MAX_NAMES = 1000
_MAX_KEY_PARTS = 16

# Operations by code: the bytes of their argument, or of the length before it. Other ways to call
# (INST, OBJ, NEWOBJ_EX), extension codes, outside buffers and the text forms of protocol 0 are missing.
_FIXED = {
    **dict.fromkeys(b"(01N\x88\x89)\x85\x86\x87t]ae\x94\x93Rb", 0),
    **dict.fromkeys(b"\x80Kqh", 1),
    **dict.fromkeys(b"Jrj", 4),
    ord("M"): 2,
    ord("G"): 8,
}
_COUNTED = {0x8A: 1, 0x8C: 1, ord("C"): 1, ord("X"): 4, ord("B"): 4, 0x8D: 8, 0x8E: 8, 0x96: 8}
_FRAME = 0x95
_GLOBAL = ord("c")
_LONG_PUT = ord("r")
_STOP = ord(".")
_OF_STRUCTURES = b"}su\x8f\x90\x91\x81Q"


class MalformedPickle(ValueError):
    """The stream is damaged, too large, or asks for something that is not read here."""


class Record:
    """Stand-in for an object of the class, or the result of the function, called ``of``."""

    __slots__ = ("arguments", "state")
    of: ClassVar[str]
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any) -> Record:
        record = object.__new__(cls)
        record.arguments = arguments
        record.state = None
        return record

    # Without it, the unpickler would set attributes, on the class itself if a stream asked for that.
    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Dictionary(dict[Any, Any]):
    """An OrderedDict or defaultdict. Its arguments and its state are dropped; its items come one by one, with
    their keys checked."""

    __slots__ = ()

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _Inert:
    """Base that turns names in a stream into classes that do nothing."""

    _is_allowed: Callable[[str], bool]
    _found: dict[str, type]

    def find_class(self, module: str, name: str) -> type:
        name = f"{module}.{name}"
        if name not in self._found:
            if not self._is_allowed(name) or len(self._found) == _MAX_NAMES:
                raise MalformedPickle(f"names {name[:120]!r}, which has no place in such a file")
            is_dictionary = name in ("collections.OrderedDict", "collections.defaultdict")
            self._found[name] = (
                _Dictionary if is_dictionary else type("Record", (Record,), {"__slots__": (), "of": name})
            )
        return self._found[name]


class StructureReader(_Inert, _Unpickler):
    """Reads consecutive pickles, with ``load``.

    Args:
        is_allowed: whether a name (``module.name``) may occur at all.
        reference: turns a persistent id into a value.
    """

    stack: list[Any]

    def __init__(
        self, stream: io.BytesIO, is_allowed: Callable[[str], bool], reference: Callable[[Any], Any]
    ) -> None:
        super().__init__(stream)
        self._is_allowed = is_allowed
        self._found = {}
        self._reference = reference

    def persistent_load(self, value: Any) -> Any:
        return self._reference(value)

    def load(self) -> Any:
        """Returns the next pickle. Raises MalformedPickle if it is damaged, or not of plain data and allowed
        names."""
        with _refusing_damage():
            return super().load()

    def _check_keys(self, code: int) -> None:
        stack = self.stack  # after a mark: only what came since
        keys = stack[-2:-1] if code == ord("s") else stack[::2] if code == ord("u") else stack
        for key in keys:
            parts = key if type(key) is tuple and len(key) <= _MAX_KEY_PARTS else (key,)
            if not all(part is None or isinstance(part, str | int | float | bytes | type) for part in parts):
                raise MalformedPickle(f"a {type(key).__name__} as key")


def _operation(code: int) -> Callable[[Any], None]:
    operation: Callable[[Any], None] = _Unpickler.dispatch[code]
    if code not in b"su\x90\x91":
        return operation

    def checked(reader: StructureReader) -> None:
        reader._check_keys(code)
        operation(reader)

    return checked


StructureReader.dispatch = {
    code: _operation(code) for code in (*_FIXED, *_COUNTED, _FRAME, _GLOBAL, _STOP, *_OF_STRUCTURES)
}


class _VectorReader(_Inert, Unpickler):
    def __init__(self, stream: mmap.mmap, is_allowed: Callable[[str], bool]) -> None:
        super().__init__(stream)
        self._is_allowed = is_allowed
        self._found = {}


def load_vectors(stream: mmap.mmap, is_allowed: Callable[[str], bool]) -> Any:
    """Returns the content of the pickle in a mapped file: lists, tuples, numbers, texts, bytes and allowed
    names.

    Raises:
        MalformedPickle: it is damaged, or holds anything else.
    """
    with _refusing_damage():
        _check_operations(stream)
        return _VectorReader(stream, is_allowed).load()


@contextmanager
def _refusing_damage() -> Iterator[None]:
    try:
        yield
    except (MalformedPickle, OSError):
        raise
    except Exception as error:  # the unpickler raises whatever a damaged stream causes
        raise MalformedPickle(f"damaged ({type(error).__name__})") from None


def _check_operations(data: mmap.mmap) -> None:
    """Walks through the operations up to the last. A vector has some thirty, so the usual ones only look up a
    number and add it."""
    sizes = [_FIXED.get(code, -1) for code in range(256)]
    offset = 0
    end = len(data)
    count = 0
    while (code := data[offset]) != _STOP:
        offset += 1
        count += 1
        size = sizes[code]
        if size >= 0:
            if (
                size == 4
                and code == _LONG_PUT
                and int.from_bytes(data[offset : offset + 4], "little") > count
            ):
                raise MalformedPickle("damaged (a memo number too high)")
            offset += size
        elif (size := 8 if code == _FRAME else _COUNTED.get(code, 0)) > 0:
            length = int.from_bytes(data[offset : offset + size], "little")
            offset += size
            if length > end - offset:
                raise MalformedPickle(f"{length} bytes are announced, {end - offset} are left")
            offset += 0 if code == _FRAME else length
        elif code == _GLOBAL:
            for _ in range(2):  # module and name, a line each
                offset = data.find(b"\n", offset) + 1 or end
        else:
            raise MalformedPickle(f"operation {bytes([code])!r} is not read here")
