"""What a command is asked to write: checked before the work begins, made by one process, and known again by the same command."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError, OutputError
from dpr.core.logs import get_logger
from dpr.formats.checksums import made_of_in, verify_file
from dpr.formats.durable import MANIFEST, read_manifest, verify_folder, writing
from dpr.formats.leftovers import remove, remove_leftovers_once, temporary_beside
from dpr.formats.run_lock import held, lock_of

logger = get_logger(__name__)


@contextmanager
def output(target: Path, made_of: Mapping[str, Any], *, overwrite: bool | None = False) -> Iterator[bool]:
    """A block in which this process alone makes ``target``. Yields False where there is nothing to do: it is whole, and made of the same.

    The block writes ``made_of`` with the output: as the note of a ``durable_file``, or as the item "made_of" of a folder's metadata.

    Args:
        made_of: the command's settings, and its inputs by ``content_sha256``.
        overwrite: None where the command has no such setting.

    Raises:
        InputError: it exists, made of something else or damaged, and ``overwrite`` is not set; or is not an output of this toolkit.
        OutputError: it cannot be written.
        CheckpointError: another process is making it.
    """
    require_writable(target.parent, folder=True)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with held(target, file=lock_of(target)):
        yield not _is_made(target, json.loads(json.dumps(made_of)), overwrite)


def require_writable(target: str | Path, *, folder: bool = False) -> None:
    """Refuses a place that cannot be written, before the work begins. Nothing is made; missing folders above it are no reason.

    Args:
        target: the file to be written, or with ``folder`` the folder to write into.

    Raises:
        OutputError: it is the root of the file system, is or lies under a file, or may not be written.
    """
    target = Path(target)
    try:
        if target.resolve() == Path(target.resolve().anchor):
            raise OutputError(target, "it is the root of the file system", hint="name a folder")
        if target.is_dir() and not folder:
            raise OutputError(target, "it is a folder", hint="name a file")
        place = target if folder else target.parent
        while not (place.exists() or place.is_symlink()):
            place = place.parent
        if not place.is_dir():
            raise OutputError(target, f"{place} is not a folder")
        remove_leftovers_once(place)
        probe = temporary_beside(place / "probe")
        try:
            os.close(os.open(probe, os.O_CREAT | os.O_WRONLY))
        finally:
            remove(probe)
    except OutputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise OutputError(target, getattr(error, "strerror", None) or str(error)) from None


def _is_made(target: Path, made_of: Any, overwrite: bool | None) -> bool:
    is_folder = target.is_dir()
    if not (target.exists() or target.is_symlink()) or (is_folder and not any(target.iterdir())):
        return False
    hint = "choose another name, or remove it first" if overwrite is None else "choose another name, or overwrite=true"
    if overwrite:
        if is_folder and not (target / MANIFEST).is_file():
            raise InputError("is a folder that this toolkit has not written", file=target, hint="choose another name, or remove it first")
        return False
    stated: Any = None
    with suppress(InputError):
        stated = read_manifest(target)["metadata"].get("made_of") if is_folder else made_of_in(target)
    if stated != made_of:
        both = isinstance(stated, dict)
        other = [key for key in sorted(stated.keys() | made_of.keys()) if stated.get(key) != made_of.get(key)] if both else []
        raise InputError("exists already" + (f", made with another {', '.join(other)}" if other else ""), file=target, hint=hint)
    if problems := verify_folder(target) if is_folder else verify_file(target):
        raise InputError(f"exists already, and has changed since it was made: {problems[0]}", file=target, hint=hint)
    logger.info("%s is there already, made of the same inputs with the same settings: nothing to do", target)
    return True
