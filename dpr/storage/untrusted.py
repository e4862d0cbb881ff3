"""Checks of files from others. JSON must be free of repeated keys, NaN or infinity, numbers that no float or
memory holds, and deep nesting. Names that lead out of their folder are not followed."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeGuard

from dpr.core.errors import CheckpointError, InputError

MAX_JSON_BYTES = 2**29
MAX_DEPTH = 200
"""Deepest nesting of lists and objects. Parsers recurse, and any library may change how far the interpreter
lets them."""
_STEPS = tuple((byte in b"[{") - (byte in b"]}") for byte in range(256))
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))


class TooDeepError(ValueError):
    """JSON is nested deeper than MAX_DEPTH."""

    def __init__(self) -> None:
        super().__init__(f"nested too deeply (more than {MAX_DEPTH} lists and objects inside each other)")


def parsed(text: str) -> Any:
    """Returns the value of a JSON text; repeated keys are allowed.

    Raises:
        ValueError: it is not JSON (NaN and 1e999 are not), or nested too deeply.
    """
    require_shallow(text)
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float)


def read_json(path: Path) -> Any:
    """Returns the value in a JSON file.

    Raises:
        InputError: missing, unreadable, too large, not JSON (NaN and 1e999 are not), or nested too deeply.
    """
    path = Path(path)
    try:
        if (size := path.stat().st_size) > MAX_JSON_BYTES:
            raise InputError(
                f"has {size:,} bytes", file=path, expected=f"at most {MAX_JSON_BYTES:,} in one JSON document"
            )
        return parsed(path.read_bytes().decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        found = f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}"
        raise InputError(found, file=path, line=error.lineno) from None
    except ValueError as error:
        raise InputError(f"not JSON: {error}", file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path) from None


def require_shallow(text: str) -> None:
    """Raises TooDeepError if a parser of this JSON would recurse deeper than MAX_DEPTH."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    # Without what is escaped, all but brackets and quotes, and strings; at the speed of C.
    data = text.encode("utf-8", "surrogatepass").replace(b"\\\\", b"").replace(b'\\"', b"")
    data = re.sub(rb'"[^"]*"?', b"", data.translate(None, _NOT_STRUCTURE).replace(b'""', b""))
    if max(accumulate(map(_STEPS.__getitem__, data)), default=0) > MAX_DEPTH:
        raise TooDeepError


def describe(value: Any) -> str:
    """Returns a value as error messages show it: short, in JSON's words."""
    if value is None:
        return "null"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an empty list" if not value else "a list"
    if not isinstance(value, bool | str | int | float):  # values of a Parquet column or a Python literal
        return f"of type {type(value).__name__}"
    kind = "boolean" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
    text = str(value)
    return f"the {kind} {text[:40]!a}..." if len(text) > 40 else f"the {kind} {value!a}"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        ((repeated, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {repeated!a} appears twice in one object")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _parse_int(digits: str) -> int:
    if len(digits) > 1000:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value


STRICT = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_constant=_refuse_constant,
    parse_int=_parse_int,
    parse_float=_finite_float,
)


_LONGEST = 4096


def inside(folder: Path, name: Any, *, stated_in: str | Path) -> Path:
    """Returns the file or folder that ``stated_in``, a file of the folder, names; it need not exist.

    Code that reads, writes or removes anything that a file names must call this first, since the file may
    come from anyone.

    Raises:
        CheckpointError: it is no name, or leaves the folder: an absolute one, one with ``..``, or a link that
        leads out.
    """
    if is_below(name) and leads_inside(folder, folder / name):
        return folder / name
    found = f"names {describe(name)}" + (", which is a link" if is_below(name) else "")
    raise CheckpointError(found, file=folder / stated_in, expected="a file or folder inside its own folder")


def is_below(name: Any) -> TypeGuard[str]:
    """True if a name, read literally, stays below its folder. Links are not followed."""
    if not isinstance(name, str) or "\\" in name or "\0" in name or len(name) > _LONGEST:
        return False
    parts = Path(name).parts
    return bool(parts) and ".." not in parts and not Path(name).is_absolute()


def leads_inside(folder: Path, path: Path) -> bool:
    """True if a path leads into the folder once all links are followed. A blob of the hub's cache that
    contains the folder counts, too."""
    try:
        inner = folder.resolve()
        target = path.resolve()
    except (OSError, RuntimeError):  # links in a circle
        return False
    if target.is_relative_to(inner):
        return True
    # A link in REPOSITORY/snapshots/REVISION may lead to a file in REPOSITORY/blobs.
    places = (inner, *inner.parents)
    blobs = next((one.parent.parent / "blobs" for one in places if one.parent.name == "snapshots"), None)
    return blobs is not None and target.parent == blobs
