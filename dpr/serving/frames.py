"""What the service and its workers send each other through pipes: a JSON object, and bodies that are passed
on as they are.

A frame is the length of the object (4 bytes, big endian), the object, and the bodies, whose lengths are its
item ``sizes``.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Sequence
from typing import Any, BinaryIO

_LENGTH = struct.Struct(">I")


def packed(value: dict[str, Any], bodies: Sequence[bytes] = ()) -> bytes:
    """The bytes of a frame."""
    text = json.dumps(value | {"sizes": [len(body) for body in bodies]}).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *bodies])


async def receive(reader: asyncio.StreamReader) -> tuple[dict[str, Any], list[bytes]]:
    """The next frame.

    Raises:
        EOFError: the other side is gone.
    """
    try:
        value = json.loads(
            await reader.readexactly(_LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0])
        )
        return value, [await reader.readexactly(size) for size in value.pop("sizes")]
    except (asyncio.IncompleteReadError, ConnectionError):
        raise EOFError from None


def read(file: BinaryIO) -> dict[str, Any] | None:
    """The object of the next frame without bodies; None at the end."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    text = file.read(size := _LENGTH.unpack(head)[0])
    return json.loads(text) if len(text) == size else None
