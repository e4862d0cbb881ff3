"""Settings as arguments of a command line, ``key=value``, which are read back as they were."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PLAIN = re.compile(
    r"(?!(null|true|false|yes|no|on|off|inf|infinity|nan)$)[a-z./][\w./+-]*", re.ASCII | re.IGNORECASE
)


def quoted(value: str, *, resolves: bool = False) -> str:
    """Returns the value in quotes, so that it is taken literally. With ``resolves``, ``${...}`` still stands
    for another setting."""
    escaped = value if resolves else re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", escaped)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{chr(92) * trailing}'"


def typed(value: Any) -> str:
    """Returns a value of any type as a command line reads it back."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}: {typed(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, str):
        return json.dumps(value)
    return value if _PLAIN.fullmatch(value) else quoted(value)


def overrides(values: Mapping[str, Any]) -> list[str]:
    """Returns the settings as arguments of a command line, each read back as it is. Settings that are None
    are left out."""
    return [f"{key}={typed(value)}" for key, value in values.items() if value is not None]
