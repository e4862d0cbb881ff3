"""Locks: who may write to a run's folder or to an output.

A lock file names the processes that write there. It is taken over once all of them have ended. A process of this
machine is identified by its number and start time. For other machines only the file's age is known: the owner
touches it every half minute. A stale lock can be removed by hand; the message says so.

The file itself is locked (filelock) only while it is read and written. No lock of that package keeps the promise
of docs/reliability.md for as long as a run takes. A run is refused while any rank of an earlier one lives, but each
of these locks has one owner. Workers outlive a killed run by seconds, and would inherit a lock of the operating
system. A run on another machine counts as gone if its file is old, but a lease has to be watched for its duration.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor

from dpr.core.errors import CheckpointError, InputError, OutputError
from dpr.core.logs import get_logger
from dpr.storage.durable import writing
from dpr.storage.leftovers import ProcessName, open_own, temporary_beside, this_process
from dpr.storage.untrusted import parsed, read_json

logger = get_logger(__name__)

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
                    hint=f"wait for it or end it; if you know that it has ended, remove {self._file}",
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
                raise OutputError(self._file, "it is not a lock file", hint="move it away")
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
