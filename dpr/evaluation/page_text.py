"""Texts as a page shows them: settings without credentials and absolute paths, and long texts cut."""

from __future__ import annotations

import json
import re
from typing import Any

_SECRET_KEY = re.compile(
    r"secret|passw|credential|(?:^|[_.])(?:api|auth|access|hf|wandb|hub)_?(?:key|token)|(?:^|[_.])token$",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(r"\b(?:hf_|sk-|gh[pousr]_|xox[bp]-|AKIA)[A-Za-z0-9_-]{12,}|(?<=://)[^/\s@]+@")
# Only the last part of an absolute path is kept: it names the file, and the rest would reveal its owner.
_ABSOLUTE = re.compile(
    r"(?<![\w.:/~*-])(?:~|[A-Za-z]:)?[/\\]+(?:[^/\\\s\"',\[\]]+[/\\]+)*(?=[^/\\\s\"',\[\]])"
)
# Characters that XML cannot hold, and controls that change the reading direction of everything after them.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)


def flatten(value: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Returns nested settings as ``section.key`` -> text, without anything that a page must not show."""
    flat: dict[str, str] = {}
    for key, entry in value.items():
        name = f"{prefix}{key}"
        if _SECRET_KEY.search(name) and entry is not None:
            flat[name] = "(hidden)"
        elif isinstance(entry, dict):
            flat |= flatten(entry, f"{name}.")
        else:
            flat[name] = printable(entry)
    return flat


def printable(value: Any) -> str:
    """Returns a setting as text, with absolute paths shortened to their last part and credentials hidden."""
    if isinstance(value, list | tuple):
        return ", ".join(printable(item) for item in value)
    text = value if isinstance(value, str) else "-" if value is None else json.dumps(value, default=str)
    if re.match(r"(?:~|[A-Za-z]:)?[/\\][^,:]+$", text):  # one path; its folders may hold spaces
        return ".../" + re.split(r"[/\\]+", text.rstrip("/\\"))[-1]
    return _ABSOLUTE.sub(".../", _SECRET_TEXT.sub("(hidden)", text))


def cut(text: str, limit: int) -> str:
    """Returns at most ``limit`` characters, cut at a space if one is near. White space becomes single
    spaces."""
    flat = " ".join(text[: 4 * limit + 100].split())
    if len(flat) <= limit:
        return flat
    kept = flat[:limit].rsplit(" ", 1)[0] if " " in flat[max(limit - 30, 1) : limit] else flat[:limit]
    return kept.rstrip() + " ..."


def printable_text(text: str) -> str:
    """Returns the text with a replacement sign for each character that a page must not hold."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
