"""Ways to damage a file: bytes, lines, cells, JSON values. Everything follows from the generator given."""

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

PIECES = (
    *(b"\0", b"\r", b"\r\n", b"\n\n", b"\t", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
    *b"\" \\ [ } , ' \\u0000 \\ud800 NaN -Infinity 1e999 null true {} /../ %s%n ${x}".split(),
    *(b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"\x1f\x8b", b"\x80\x05", b"PK\x03\x04", b"\xff\xfe"),
)
NUMBERS = (0, -1, 2**63, -(2**63) - 1, 10**400, 1.5, -0.0, 1e308, *map(float, ("nan", "inf", "-inf")))
TEXTS = ("", " ", "\0", "\ud800", "\u2028", "a\r\nb\tc", "x" * 70_000, "\u00e9" * 300, "\u0661\u0662")
NAMES = ("../../x", "/etc/passwd", "nan", "1e999")
HOLDERS = ([], {}, [[]], [None], [{}], {"": None}, [1, "a", None], {"a": {"b": [1]}})
VALUES: tuple[Any, ...] = (None, True, False, *NUMBERS, *TEXTS, *NAMES, *HOLDERS)


def flip(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def overwrite(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + rng.randbytes(rng.randint(1, 8)) + data[place + rng.randint(0, 8) :]


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def insert(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.choice(PIECES) + data[place:]


def lose(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + data[place + rng.randint(1, 40) :]


def repeat(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + data[max(0, place - rng.randint(1, 60)) :]


BYTES: tuple[Mutation, ...] = (flip, overwrite, cut, insert, lose, repeat)


def newlines(data: bytes, rng: random.Random) -> bytes:
    """Mixed ends of lines."""
    return b"".join(row + rng.choice((b"\n", b"\r\n", b"\r", b"\n\n", b"\n \n")) for row in data.split(b"\n"))


def encoding(data: bytes, rng: random.Random) -> bytes:
    """A byte order mark, or another encoding altogether."""
    text = data.decode("utf-8", "replace")
    return (
        b"\xef\xbb\xbf" + data
        if rng.random() < 0.4
        else text.encode(rng.choice(("utf-16", "utf-32", "latin-1", "utf-8-sig")), "replace")
    )


def lines(data: bytes, rng: random.Random) -> bytes:
    """Lines twice, in another order, or lost."""
    pieces = data.split(b"\n")
    rng.shuffle(pieces)
    return b"\n".join(piece for piece in pieces for _ in range(rng.choice((0, 1, 1, 2))))


def zipped(data: bytes, rng: random.Random) -> bytes:
    """Packed, and often damaged then."""
    packed = gzip.compress(data, mtime=0)
    return packed if rng.random() < 0.3 else rng.choice(BYTES)(packed, rng)


def cells(data: bytes, rng: random.Random) -> bytes:
    """A cell of a table replaced, lost or added."""
    rows = data.split(b"\n")
    row = rng.randrange(len(rows))
    separator = b"\t" if b"\t" in rows[row] else b" "
    parts = rows[row].split(separator)
    value = str(rng.choice(VALUES)).encode("utf-8", "surrogatepass")
    place = rng.randrange(len(parts))
    kind = rng.randrange(3)
    parts[place : place + (kind != 0)] = [] if kind == 1 else [value]
    rows[row] = separator.join(parts)
    return b"\n".join(rows)


def values(data: bytes, rng: random.Random) -> bytes:
    """Somewhere in the JSON another value, a key lost or added, or nesting without end."""
    is_lines = data.lstrip()[:1] == b"{" and b"}\n{" in data
    try:
        documents = (
            [json.loads(line) for line in data.split(b"\n") if line.strip()]
            if is_lines
            else [json.loads(data)]
        )
    except (ValueError, RecursionError):
        return rng.choice(BYTES)(data, rng) if data else data
    if not documents:
        return b"[]"
    place = rng.randrange(len(documents))
    documents[place] = _changed(documents[place], rng)
    text = "\n".join(
        json.dumps(document, indent=None if is_lines else rng.choice((None, 1))) for document in documents
    )
    if rng.random() < 0.1:
        depth = rng.choice((50, 900, 1100, 10_000))
        text = text.replace("null", "[" * depth + "]" * depth, 1)
    if rng.random() < 0.1:
        text = text.replace('": ', '": 1, "question": ', 1)
    return text.encode("utf-8", "surrogatepass")


def _changed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        return [*value[:place], _changed(value[place], rng), *value[place + 1 :]]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        kind = rng.randrange(8)
        if kind == 0:
            return {name: entry for name, entry in value.items() if name != key}
        if kind == 1:
            return {
                rng.choice(("", "x", "\ud800", "id", "_id", "score")) if name == key else name: entry
                for name, entry in value.items()
            }
        return {**value, key: _changed(value[key], rng)}
    return rng.choice(VALUES)


TEXT: tuple[Mutation, ...] = (*BYTES, newlines, encoding, lines, zipped)
TABLE: tuple[Mutation, ...] = (*TEXT, cells, cells, cells)
JSON: tuple[Mutation, ...] = (*TEXT, values, values, values, values, values)


def mutate(data: bytes, rng: random.Random, kinds: tuple[Mutation, ...]) -> bytes:
    """One to three damages."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        if data:
            data = rng.choice(kinds)(data, rng)
    return data
