"""SHA-256 of files: of inputs, remembered so that each is read once; of outputs, as ``<name>.sha256`` beside a single file.

The latter is one line, as ``sha256sum --check`` reads it, written by ``durable_file``; a line of comment below it may say what the file was
made of. Folders have a manifest instead (``dpr.formats.durable``).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.formats.durable import CHECKSUM, describe_file, durable_file

SUFFIX = CHECKSUM
_MADE_OF = "# made_of "
_SETTLED_NS = 2 * 10**9  # file systems note times this coarsely: a file that is younger can change and keep its times


def cache_root(cache_dir: Path | None) -> Path:
    """``cache_dir``, else $DPR_CACHE, else ~/.cache/dpr."""
    return Path(cache_dir or os.environ.get("DPR_CACHE") or "~/.cache/dpr").expanduser()


def content_sha256(path: Path, *, without: Path | None = None) -> str:
    """SHA-256 of the whole content of a file; of a folder, that of the names and contents of all files in it.

    ``without`` is an output that may lie in the folder, with what belongs to it.

    The hash of a file is remembered in the cache folder by device, inode, size and times, so that one that has not changed is read once.

    Raises:
        InputError: a file is gone, cannot be read, or changes while it is read.
    """
    try:
        if not path.is_dir():
            return _remembered_sha256(path)
        files = sorted(found for found in path.rglob("*") if found.is_file())
        if without is not None:
            own, names = without.parent.resolve(), (without.name, f".tmp-{without.name}")
            files = [file for file in files if file.parent.resolve() != own or not file.name.startswith(names)]
        listed = [[file.relative_to(path).as_posix(), _remembered_sha256(file)] for file in files]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=error.filename or path) from None
    return _sha256(json.dumps(listed))


def _remembered_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        begun, seen = time.time_ns(), _identity(file.fileno())
        note = cache_root(None) / "contents" / _sha256(seen)[:32]
        with suppress(OSError, ValueError):
            found, check = note.read_text("ascii").split()
            if check == _sha256(seen + found):  # a damaged note, or one of another file, does not count
                return found
        found = hashlib.file_digest(file, "sha256").hexdigest()
        status = os.fstat(file.fileno())
        if _identity(file.fileno()) != seen:
            raise InputError("changed while it was read", file=path, hint="rerun the same command when it is complete")
    if begun - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS:
        with suppress(OSError), durable_file(note) as out:  # without a cache it is read again the next time
            out.write(f"{found} {_sha256(seen + found)}\n")
    return found


def _identity(descriptor: int) -> str:
    status = os.fstat(descriptor)
    return repr((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def verify_file(path: Path) -> list[str]:
    """What is wrong with a file that has a checksum beside it, one sentence each; empty when it is as it was written."""
    note = _note_of(path)
    if not note.is_file():
        return [f"no {note.name} beside it, so nothing says what was written"]
    try:
        stated = re.match(r"[0-9a-f]{64}(?=\s)", note.read_bytes().decode("ascii", "replace"))
        if stated is None:
            return [f"{note.name} holds no SHA-256"]
        is_same = describe_file(path)["sha256"] == stated[0]
    except FileNotFoundError:
        return ["is missing"]
    except OSError as error:
        return [f"cannot be read ({error.strerror})"]
    return [] if is_same else [f"content has changed (SHA-256 differs from the one in {note.name})"]


def describe_start(path: Path, size: int | None = None) -> dict[str, Any]:
    """Size and SHA-256 of the first ``size`` bytes of a file, of the whole file where that is None; of an absent one those of nothing."""
    try:
        data = path.read_bytes()[:size]
    except FileNotFoundError:
        data = b""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def verify_start(path: Path, stated: Any) -> list[str]:
    """What is wrong with a file that may have grown since ``describe_start`` described it, one sentence each."""
    try:
        found = describe_start(path, int(stated["bytes"]))
    except (OSError, TypeError, KeyError, ValueError) as error:
        return [f"cannot be compared with what was written ({error})"]
    if found["bytes"] < stated["bytes"]:
        return [f"has been cut to {found['bytes']:,} of the {stated['bytes']:,} bytes that were written"]
    return [] if found["sha256"] == stated.get("sha256") else ["content has changed since it was written"]


def made_of_in(path: Path) -> Any:
    """What the note beside a file says it was made of; None where it does not say."""
    with suppress(OSError, ValueError):
        for line in _note_of(path).read_text(encoding="utf-8").splitlines():
            if line.startswith(_MADE_OF):
                return json.loads(line.removeprefix(_MADE_OF))
    return None


def _note_of(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)
