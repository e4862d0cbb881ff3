"""Outputs and cached folders of commands: checked before the work begins, built by one process, and
recognised by later ones.

A lock file names the processes that write a run's folder or an output. It is taken over once all of them have
ended. A process of this machine is identified by its number and start time. For other machines only the
file's age is known: the holder touches it every half minute. A stale lock can be removed by hand; the message
says so.

The file itself is locked (filelock) only while it is read and written. A lock held for as long as the run
would be inherited by its workers, which outlive a killed run by seconds, and would not tell whether the run's
other ranks still write.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor

from dpr.core.errors import CheckpointError, DprError, InputError, OutputError
from dpr.core.logs import get_logger
from dpr.core.records import text_sha256
from dpr.storage.checksums import content_sha256, read_note, remove_stale_notes, verify_file
from dpr.storage.durable import MANIFEST, read_json, read_manifest, verify_folder, writing
from dpr.storage.leftovers import (
    ProcessName,
    open_own,
    remove,
    remove_leftovers_once,
    temporary_beside,
    this_process,
)
from dpr.storage.untrusted import parsed

LOCK_FILE = "run.lock"
_BEGINNING = b'{"token"'  # a killed writer may have left less than all
TOUCH_EVERY_S = 30.0
STALE_AFTER_S = 180.0


class RunLock:
    """The right to write to ``target``, a run's folder or another output. Rank 0 holds it on behalf of all
    ranks' processes.

    The lock is ``file``, or ``run.lock`` in the folder. It is held from ``acquire`` to ``release``, to the
    end of the process, or until this object is garbage-collected.
    """

    def __init__(self, target: Path, *, file: Path | None = None) -> None:
        self._target = target
        self._file = file or target / LOCK_FILE
        self._token = ""
        self._release: weakref.finalize[..., RunLock] | None = None

    def acquire(self, processes: list[ProcessName], *, wait_s: float = 2.0) -> None:
        """Takes the lock. Waits a little for a run that is just ending, or with ``math.inf`` for any run to
        end.

        Raises:
            CheckpointError: another run holds it.
            OutputError: the lock file cannot be written.
        """
        deadline = time.monotonic() + wait_s
        is_told = wait_s < math.inf
        while (holder := self._take(processes)) is not None:
            if time.monotonic() >= deadline:
                raise CheckpointError(
                    f"another run is writing here: {holder}",
                    file=self._target,
                    hint=f"wait for it or end it; if you know that it is gone, remove {self._file}",
                )
            if not is_told:
                logger.info("%s: another run is writing here: %s; waiting for it", self._target, holder)
                is_told = True
            time.sleep(0.2)
        done = threading.Event()
        self._release = weakref.finalize(self, _remove_lock, self._file, self._token, done, os.getpid())
        threading.Thread(target=_keep_fresh, args=(self._file, done), daemon=True).start()

    def release(self) -> None:
        """Releases the lock. Does nothing if it is not held, or another run has taken it over."""
        if self._release is not None:
            self._release()

    def is_ours(self) -> bool:
        """True if the file is still the one that this object wrote."""
        return _token_in(self._file) == self._token

    def _take(self, processes: list[ProcessName]) -> str | None:
        """Writes the lock file and returns None, or returns the current holder."""
        with writing(self._file), alone_with(self._file) as (file, is_alone):
            file.seek(0)
            content = file.read()
            seen: dict[str, Any] = {}
            with suppress(TypeError, ValueError):
                seen = dict(parsed(content.decode()))
            if content.strip(b"\0") and not content.startswith(_BEGINNING):
                raise OutputError(self._file, "it holds something else than a lock", hint="move it away")
            if (holder := self._holder(seen)) is not None:
                return holder
            if seen:
                logger.warning("%s was left by processes that no longer exist; taking it over", self._file)
            self._token = os.urandom(8).hex()
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            lock = {
                "token": self._token,
                "since": since,
                "processes": [asdict(process) for process in processes],
            }
            file.truncate(0)
            file.write(json.dumps(lock).encode())
            file.flush()
        if not is_alone:
            # a file system without locks: of two that take over at the same time, the last writer stays
            time.sleep(0.05)
        return None if self.is_ours() else "it has just taken the lock"

    def _holder(self, lock: dict[str, Any]) -> str | None:
        """Returns the first living process that a lock file names; None if the lock is free or damaged."""
        try:
            processes = [
                ProcessName(str(item["host"]), int(item["pid"]), int(item["start"]))
                for item in lock["processes"]
            ]
        except (KeyError, TypeError, ValueError):
            return None
        mine = this_process()
        since = f", since {lock['since']}" if "since" in lock else ""
        for rank, process in enumerate(processes):
            is_gone = process.is_gone()
            if is_gone is None:
                is_gone = self._age_s() > STALE_AFTER_S
            if process != mine and not is_gone:
                return f"process {process.pid} on {process.host} (rank {rank}{since})"
        return None

    def _age_s(self) -> float:
        """Returns the seconds since the file was touched, by the clock of the file system, which may differ
        from this machine's."""
        now = temporary_beside(self._file)
        try:
            open_own(now, "xb").close()
            return now.stat().st_mtime - self._file.stat().st_mtime
        except OSError:
            return 0.0
        finally:
            now.unlink(missing_ok=True)


@contextmanager
def locked(target: Path, *, file: Path | None = None, wait_s: float = 2.0) -> Iterator[None]:
    """Lets this process alone write ``target`` within the block. Waits and raises as ``RunLock.acquire``
    does."""
    lock = RunLock(target, file=file)
    lock.acquire([this_process()], wait_s=wait_s)
    try:
        yield
    finally:
        lock.release()


def lock_of(output: Path) -> Path:
    """Returns the lock file of an output that is not a run's folder."""
    return output.with_name(f"{output.name}.lock")


@contextmanager
def alone_with(path: Path) -> Iterator[tuple[IO[bytes], bool]]:
    """Yields the file, created if missing and open for reading and writing, and whether it is really locked
    against others."""
    while True:
        with open_own(path, "ab+") as file:
            try:
                is_alone = lock_descriptor(file.fileno())
            except OSError:  # some network file systems have no locks
                is_alone = False
            try:
                is_there = os.path.samestat(os.fstat(file.fileno()), path.lstat())
            except FileNotFoundError:
                is_there = False
            if is_there:
                yield file, is_alone
                return
        # The previous holder removed it while this process waited.


def _keep_fresh(file: Path, done: threading.Event) -> None:
    while not done.wait(TOUCH_EVERY_S):
        with suppress(OSError):
            os.utime(file, follow_symlinks=False)


def _remove_lock(file: Path, token: str, done: threading.Event, owner: int) -> None:
    if os.getpid() == owner:  # forked workers have a copy of the lock, but must not release it
        done.set()
        with suppress(OSError):
            if _token_in(file) == token:
                file.unlink()


def _token_in(file: Path) -> str | None:
    with suppress(InputError, KeyError, TypeError):
        return str(read_json(file)["token"])
    return None


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
                reason = f"{parent} is a checkpoint, which with other files in it cannot be opened"
                raise OutputError(target, reason, hint="name another folder")
        remove_leftovers_once(existing)
        probe = temporary_beside(existing / "probe")
        try:
            open_own(probe, "xb").close()
        finally:
            remove(probe)
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
            raise InputError("is a folder that this toolkit has not written", file=target, hint=hint)
        return False
    stated: Any = None
    found = "exists already"
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
        logger.info(
            "%s exists already, made of the same inputs with the same settings: nothing to do", target
        )
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
        hint = "this is the cache; set DPR_CACHE to a folder that can be written"
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
            with (
                suppress(DprError),
                open_own(lock, "rb") as file,
            ):  # locks of builds are empty, unlike other programs' files of this name
                if not os.fstat(file.fileno()).st_size and lock_descriptor(file.fileno(), blocking=False):
                    lock.unlink()
        remove_stale_notes(folder)
