"""Paths as users write them: the home folder, patterns, and paths that may not be read or written."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHECKSUM = ".sha256"
"""Ending of the file that holds an output's SHA-256, beside the output."""
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def user_path(name: str | os.PathLike[str]) -> Path:
    """Returns a path as a user wrote it. ``~`` is the home folder and ``~name`` that of a user, unless a file
    or folder here has exactly that name."""
    text = os.fspath(name)
    first = text.partition("/")[0]
    if not text.startswith("~") or (first != "~" and os.path.lexists(first)):
        return Path(text)
    home = os.path.expanduser(text)
    return Path(text if os.path.lexists(text) and not os.path.lexists(home) else home)


def with_home(value: Any) -> Any:
    """Returns the value of a setting that names paths, with each text passed through ``user_path``: a text or
    a list of texts. Anything else is returned as it is."""
    if isinstance(value, list | tuple):
        return [with_home(item) for item in value]
    return str(user_path(value)) if isinstance(value, str) and value.startswith("~") else value


def matching_paths(pattern: str | os.PathLike[str]) -> list[Path]:
    """Returns the path itself if it exists (then it is never a pattern), else the paths that match it, sorted
    by name.

    Existing folders are taken literally: in ``my [data]/*.jsonl`` the pattern is ``*.jsonl``.
    """
    path = user_path(pattern)
    if os.path.exists(path):
        return [path]
    folder = next((parent for parent in path.parents if os.path.isdir(parent)), Path())
    return sorted(
        folder / match for match in glob.glob(str(path.relative_to(folder)), root_dir=folder, recursive=True)
    )


def is_wide(pattern: str) -> bool:
    """True if a pattern searches folders other than a single existing one, which can be the whole machine."""
    path = user_path(pattern)
    return path.name == "**" or any(
        glob.has_magic(parent.name) and not os.path.isdir(parent) for parent in path.parents
    )


def as_text(name: str) -> str:
    """Returns the name of a file as a text that every output can hold. ``\\xe9`` stands for a byte that is
    not UTF-8."""
    return os.fsencode(name).decode(errors="backslashreplace")


def texts_in(value: Any) -> list[str]:
    """Returns every text in a value, including texts in nested lists and mappings."""
    if isinstance(value, Mapping):
        return texts_in(list(value.values()))
    if isinstance(value, list | tuple):
        return [text for item in value for text in texts_in(item)]
    return [value] if isinstance(value, str) else []


def odd_kind(path: Path) -> str:
    """Returns the kind, in words, of a path that is neither a file nor a folder; else an empty text. A pipe,
    for example, can be read only once, and opening it blocks."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except (OSError, ValueError):
        return ""


def is_replaced(read: Path, target: Path, *, adds: bool) -> bool:
    """True if writing ``target`` replaces ``read`` or a part of it.

    A file inside a folder that is read may be replaced if a checksum beside it says that it is the output of
    a command.

    Args:
        adds: ``target`` is a folder that is not replaced: files are added to it.
    """
    try:
        if os.path.samefile(read, target):
            return not (adds and target.is_dir())
        inner = read.resolve()
        outer = target.resolve()
    except (OSError, ValueError):
        return False
    if target.is_dir():
        return not adds and inner.is_relative_to(outer)
    return read.is_dir() and outer.is_relative_to(inner) and not os.path.exists(f"{target}{CHECKSUM}")
