"""Outputs and cached folders of commands: checked before the work begins, built by one process, and
recognised by later ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from filelock import lock_descriptor

from dpr.core.errors import DprError, InputError, OutputError
from dpr.core.logs import get_logger
from dpr.core.records import text_sha256
from dpr.storage.checksums import content_sha256, read_note, remove_stale_notes, verify_file
from dpr.storage.durable import MANIFEST, read_manifest, verify_folder, writing
from dpr.storage.leftovers import open_own, remove_leftovers_once
from dpr.storage.locks import alone_with, lock_of, locked

logger = get_logger(__name__)


@contextmanager
def output(target: Path, provenance: Mapping[str, Any], *, overwrite: bool | None = False) -> Iterator[bool]:
    """Lets this process alone write ``target`` within the block. Yields False if there is nothing to do,
    since it is complete and made from the same inputs and settings.

    The block writes its ``provenance``: as the note of a ``durable_file``, or as the item "made_of" of a
    folder's metadata.

    Args:
        provenance: the command's settings, and its inputs by ``content_sha256``.
        overwrite: None if the command has no such setting.

    Raises:
        InputError: it exists, made from other inputs or settings or damaged, and ``overwrite`` is not set; or
        it is not an output of this toolkit.
        OutputError: it cannot be written.
        CheckpointError: another process is writing it.
    """
    require_writable(target.parent, folder=True)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target, file=lock_of(target)):
        yield not _is_made(target, json.loads(json.dumps(provenance)), overwrite)


def require_writable(target: str | Path, *, folder: bool = False) -> None:
    """Refuses a file, or a ``folder`` to write into, that cannot be written, before the work begins. Creates
    nothing.

    Raises:
        OutputError: it is the root of the file system, is or lies under a file, lies in a checkpoint, or may
        not be written. Missing parents are fine.
    """
    target = Path(target)
    try:
        if target.resolve() == Path(target.resolve().anchor):
            raise OutputError(target, "it is the root of the file system", hint="name a folder")
        if target.is_dir() and not folder:
            raise OutputError(target, "it is a folder", hint="name a file")
        existing = target if folder else target.parent
        while not (existing.exists() or existing.is_symlink()):
            existing = existing.parent
        if not existing.is_dir():
            raise OutputError(target, f"{existing} is not a folder")
        for parent in target.resolve().parents:
            if all((parent / name).is_file() for name in (MANIFEST, "model.safetensors")):
                reason = f"{parent} is a checkpoint, which cannot be opened once it holds other files"
                raise OutputError(target, reason, hint="name another folder")
        remove_leftovers_once(existing)
        TemporaryFile(dir=existing).close()  # it has no name that a kill would leave
    except OutputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise OutputError(target, getattr(error, "strerror", None) or str(error)) from None


def _is_made(target: Path, provenance: Any, overwrite: bool | None) -> bool:
    is_folder = target.is_dir()
    if not (target.exists() or target.is_symlink()) or (is_folder and not any(target.iterdir())):
        return False
    hint = f"choose another name, or {'overwrite=true' if overwrite is False else 'remove it first'}"
    if overwrite:
        if is_folder and not (target / MANIFEST).is_file():
            raise InputError("is a folder that this toolkit did not write", file=target, hint=hint)
        return False
    stated: Any = None
    found = "already exists"
    try:
        stated = read_manifest(target)["metadata"].get("made_of") if is_folder else read_note(target)[1]
    except InputError as error:
        found += f" ({error.found})"
    if stated != provenance:
        keys = sorted(stated.keys() | provenance.keys()) if isinstance(stated, dict) else []
        if other := ", ".join(key for key in keys if stated.get(key) != provenance.get(key)):
            found += f", made with another {other}"
    elif problems := verify_folder(target) if is_folder else verify_file(target):
        found += f", and has changed since it was made: {problems[0]}"
    else:
        logger.info("%s already exists, made from the same inputs and settings: nothing to do", target)
        return True
    raise InputError(found, file=target, hint=hint)


def cache_key(paths: Sequence[Path], metadata: Sequence[Any]) -> str:
    """Returns a name that changes with name and content of the files and folders, and with ``metadata``.

    Raises:
        InputError: a file cannot be read.
    """
    known = [*metadata, *([path.name, content_sha256(path)] for path in paths)]
    return text_sha256(json.dumps(known))[:32]


def cached_problem(folder: Path) -> str | None:
    """Returns the problem of a cached folder, or None. Its metadata must name it, and every file must be as
    it was written (read once, then remembered)."""
    try:
        manifest = read_manifest(folder)
        if manifest["metadata"].get("cache") != folder.name:
            return "it belongs to other data"
        for name, entry in manifest["files"].items():
            if (folder / name).is_symlink() or content_sha256(folder / name) != entry["sha256"]:
                return f"{name} has changed"
    except InputError as error:
        return str(error)
    return None


def ensure_built(folder: Path, build: Callable[[Path], None]) -> None:
    """Calls ``build(folder)`` in one of the processes that ask together, unless the folder exists and
    ``cached_problem`` finds no problem.

    Raises:
        OutputError: the cache folder cannot be written.
    """
    parent = folder.parent
    _remove_stale(parent)
    if folder.is_dir() and cached_problem(folder) is None:
        return
    try:
        require_writable(parent, folder=True)
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "this is the cache; set DPR_CACHE to a writable folder"
        raise OutputError(parent, str(error.strerror), hint=hint) from None
    lock = lock_of(folder)
    with alone_with(lock):  # without locks in the file system, processes may build it side by side
        try:
            if folder.exists():
                if (problem := cached_problem(folder)) is None:
                    return
                logger.warning("the cache %s is damaged or unfinished (%s); rebuilding it", folder, problem)
            build(folder)
        finally:
            lock.unlink(missing_ok=True)  # a process that waits for it makes another


@cache
def _remove_stale(folder: Path) -> None:
    """Removes from a cache, once in a process, locks that killed builds left, and notes that were not read
    for a long time."""
    with suppress(OSError):
        for lock in folder.glob("*.lock"):
            with suppress(DprError), open_own(lock, "rb") as file:
                # Locks of builds are empty, unlike other programs' files of this name.
                if not os.fstat(file.fileno()).st_size and lock_descriptor(file.fileno(), blocking=False):
                    lock.unlink()
        remove_stale_notes(folder)
