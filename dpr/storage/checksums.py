"""SHA-256 of files: for inputs, cached so that each is read once; for single output files, in
``<name>.sha256`` beside them.

A checksum file holds an optional comment that states the provenance of the output, and a line that
``sha256sum --check`` reads. The line comes last, so a checksum file that lost its end has none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.logs import WatchedFile
from dpr.core.paths import odd_kind, user_path
from dpr.core.records import text_sha256
from dpr.storage.durable import (
    CHECKSUM,
    MADE_OF,
    describe_file,
    durable_file,
    names_below,
    sealed,
    verify_folder,
)
from dpr.storage.leftovers import remove_leftovers
from dpr.storage.untrusted import parsed

_NOTES = "contents"
_NOTE = re.compile(
    rf"(?:{MADE_OF}(?P<first>.*)\n)?(?P<sum>[0-9a-f]{{64}})(?:\s.*)?\n?(?:{MADE_OF}(?P<last>.*)\n)?"
)
"""Pattern of a checksum file. Earlier versions wrote the comment last."""
_DAY_S = 86_400
_STALE_DAYS = 60
_SETTLED_NS = 2 * 10**9  # the coarsest resolution of file times: a younger file can change and keep its times


def cache_root(cache_dir: str | Path | None) -> Path:
    """Returns ``cache_dir``, else $DPR_CACHE, else ~/.cache/dpr."""
    return user_path(cache_dir or os.environ.get("DPR_CACHE") or "~/.cache/dpr")


def file_state(file: Path) -> tuple[int, ...]:
    """Returns values that change when a file is replaced or written. Raises InputError if there is no such
    file."""
    try:
        status = file.stat()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=file) from None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def require_unchanged(file: Path, seen: tuple[int, ...]) -> None:
    """Raises InputError if the ``file_state`` differs from the one seen before."""
    if file_state(file) != seen:
        raise InputError("has changed since it was opened", file=file, hint="start the command again")


def content_sha256(path: Path, *, without: Path | None = None) -> str:
    """Returns the SHA-256 of a file, or of the names and contents of all files in a folder, except the output
    ``without`` and the files that belong to it.

    Hashes of files are cached by device, inode, size and times, so that an unchanged file is read once.

    Raises:
        InputError: a file is missing, cannot be read, or changes while it is read.
    """
    try:
        if not path.is_dir():
            return _cached_sha256(path)
        files = sorted(found for found in path.rglob("*") if found.is_file())
        if without is not None:
            parent = without.parent.resolve()
            names = (without.name, f".tmp-{without.name}")
            files = [
                file for file in files if file.parent.resolve() != parent or not file.name.startswith(names)
            ]
        listed = [[file.relative_to(path).as_posix(), _cached_sha256(file)] for file in files]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=error.filename or path) from None
    return text_sha256(json.dumps(listed))


def shared_content(files: Sequence[Path]) -> list[str]:
    """Returns ``content_sha256`` of files on all ranks. Rank 0 reads them first; the others find its results
    in the cache."""
    from dpr.core.distributed import on_main

    hashes: list[str] = []
    on_main(lambda: hashes.extend(map(content_sha256, files)))
    return hashes or list(map(content_sha256, files))


def _cached_sha256(path: Path) -> str:
    if kind := odd_kind(path):
        raise InputError(f"is {kind}", file=path, expected="a file")
    with WatchedFile(path) as file:
        start = time.time_ns()
        seen = _stated(os.fstat(file.fileno()))
        if found := recalled("content", [seen]):
            return found
        found = hashlib.file_digest(file, "sha256").hexdigest()
        status = os.fstat(file.fileno())
        if _stated(status) != seen:
            raise InputError(
                "changed while it was read", file=path, hint="rerun the same command when it is complete"
            )
    if start - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS:
        remember("content", [seen], found)
    return found


def folder_problems(folder: Path) -> list[str]:
    """Returns problems as ``verify_folder`` does, but files without problems are read again only if their
    inodes, sizes or times have changed."""
    start = time.time_ns()
    last = 0
    seen = [str(folder.resolve())]
    try:
        for name in ("", *names_below(folder)):
            status = (folder / name).lstat()
            seen.append(f"{name.rpartition('/')[2] or folder.name} {_stated(status)}")
            last = max(last, status.st_mtime_ns, status.st_ctime_ns)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}", file=error.filename or folder
        ) from None
    if recalled("verified", seen):
        return []
    problems = verify_folder(folder)
    if not problems and start - last > _SETTLED_NS:
        remember("verified", seen, "whole")
    return problems


def recalled(fact: str, about: Sequence[str]) -> str:
    """Returns the value that any process with this cache gave to ``remember`` for the same arguments; empty
    if there is none, or if its note is damaged or about something else."""
    note, check = _note_of(fact, about)
    with suppress(OSError, ValueError):
        value, stated = note.read_text("ascii").split()
        if stated == text_sha256(check + value):
            if time.time() - note.stat().st_mtime > _DAY_S:
                os.utime(note)  # it is in use
            return value
    return ""


def remember(fact: str, about: Sequence[str], value: str) -> None:
    """Keeps a computed value in the cache. Without a cache, it is computed again each time."""
    note, check = _note_of(fact, about)
    with suppress(OSError, InputError), durable_file(note) as out:
        out.write(f"{value} {text_sha256(check + value)}\n")


def _note_of(fact: str, about: Sequence[str]) -> tuple[Path, str]:
    check = text_sha256(json.dumps([fact, *about]))
    return cache_root(None) / _NOTES / check[:32], check


def remove_stale_notes(cache: Path) -> None:
    """Removes notes whose files are probably gone, since they were not read for a long time, and the
    leftovers of killed writers of notes."""
    remove_leftovers(cache / _NOTES)
    for note in (cache / _NOTES).glob("*"):
        if time.time() - note.lstat().st_mtime > _STALE_DAYS * _DAY_S:
            note.unlink(missing_ok=True)


def _stated(status: os.stat_result) -> str:
    return repr((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))


def read_note(path: Path) -> tuple[str, Any]:
    """Returns the SHA-256 and the provenance of a file, as the checksum file beside it states them; None for
    a provenance that it does not state.

    Raises:
        InputError: there is no checksum file, or it is damaged or cut off.
    """
    note = path.with_name(path.name + CHECKSUM)
    if not note.is_file():
        raise InputError(f"no {note.name} beside it, so its content cannot be verified", file=path)
    text = note.read_bytes().decode(errors="replace")
    stated = _NOTE.fullmatch(text)
    if stated is None or not text.endswith(("\n", path.name)):
        raise InputError(f"{note.name} holds no SHA-256, or was cut off", file=path)
    if (made_of := stated["first"] or stated["last"]) is None:
        return stated["sum"], None
    with suppress(ValueError):
        value = parsed(made_of)
        if isinstance(value, dict) and value.pop("sha256", None) in (None, sealed(value)["sha256"]):
            return stated["sum"], value
    raise InputError(f"its provenance has changed in {note.name}", file=path)


def verify_file(path: Path) -> list[str]:
    """Returns the problems of a file that has a checksum beside it, one sentence each; empty if it is as it
    was written."""
    try:
        stated, _ = read_note(path)
        is_same = describe_file(path)["sha256"] == stated
    except InputError as error:
        return [error.found]
    except FileNotFoundError:
        return ["is missing"]
    except OSError as error:
        return [f"cannot be read ({error.strerror})"]
    changed = f"content has changed (SHA-256 differs from the one in {path.name}{CHECKSUM})"
    return [] if is_same else [changed]
