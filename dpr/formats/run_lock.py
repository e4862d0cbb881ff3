"""One run to a folder, or to an output file: a lock file names the processes that write there, and is taken over when all of them are gone.

A process of this machine is known by its number and start time. For other machines there is only the file's age: the holder touches it
every half minute. A lock that is not what it seems can be removed by hand; the message says so.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpr.core.errors import CheckpointError, InputError
from dpr.core.logs import get_logger
from dpr.formats.durable import read_json, write_json

LOCK_FILE = "run.lock"
TOUCH_EVERY_S = 30.0
STALE_AFTER_S = 180.0
_HOST_BYTES = 64

logger = get_logger(__name__)


@dataclass(frozen=True)
class ProcessName:
    """A process, so that no later one with the same number is taken for it."""

    host: str
    pid: int
    start: int
    """Its start in clock ticks since the machine started; 0 where that is not to be had."""

    def is_gone(self) -> bool | None:
        """Whether it has ended; None for a process of another machine."""
        if self.host != socket.gethostname()[:_HOST_BYTES]:
            return None
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            pass
        start, state = _start_and_state(self.pid)
        return state == "Z" or start != self.start


def this_process() -> ProcessName:
    """The name of the calling process."""
    return ProcessName(socket.gethostname()[:_HOST_BYTES], os.getpid(), _start_and_state(os.getpid())[0])


class RunLock:
    """The right to write into a run's folder, or what else is the ``target``. On rank 0, in the name of all ranks' processes.

    The lock is ``run.lock`` in the folder, or the ``file`` that is named. Held from ``acquire`` to ``release``, to the end of the process,
    or until nobody has this object any more.
    """

    def __init__(self, target: Path, *, file: Path | None = None) -> None:
        self._target, self._file = target, file or target / LOCK_FILE
        self._token = ""
        self._release: weakref.finalize[..., RunLock] | None = None

    def acquire(self, processes: list[ProcessName], *, wait_s: float = 2.0) -> None:
        """Takes the lock; waits a little for a run that is just ending.

        Raises:
            CheckpointError: another run holds it.
        """
        deadline = time.monotonic() + wait_s
        while (holder := self._take(processes)) is not None:
            if time.monotonic() >= deadline:
                raise CheckpointError(
                    f"another run is writing here: {holder}",
                    file=self._target,
                    hint=f"wait for it or end it; if it is certainly gone, remove {self._file}",
                )
            time.sleep(0.2)
        done = threading.Event()
        self._release = weakref.finalize(self, _give_back, self._file, self._token, done, os.getpid())
        threading.Thread(target=_stay_young, args=(self._file, done), daemon=True).start()

    def release(self) -> None:
        """Gives the lock back; nothing when it is not held, or was taken by another."""
        if self._release is not None:
            self._release()

    def is_held(self) -> bool:
        """Whether the file still is the one that this object wrote."""
        return _token_in(self._file) == self._token

    def _take(self, processes: list[ProcessName]) -> str | None:
        """Writes the lock file and returns None, or returns who holds it."""
        token = os.urandom(8).hex()
        try:
            os.close(os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            seen = self._read()
            if (holder := self._holder(seen)) is not None:
                return holder
            if self._read() != seen:
                return "it took the folder a moment ago"
            if seen:
                logger.warning("%s was left by processes that are gone; taking over", self._file)
        write_json(self._file, {"token": token, "processes": [asdict(process) for process in processes]})
        time.sleep(0.05)  # of two that take over at the same time, the last writer stays
        self._token = token
        return None if self.is_held() else "it took the folder a moment ago"

    def _read(self) -> dict[str, Any]:
        with suppress(InputError, TypeError, ValueError):
            return dict(read_json(self._file))
        return {}

    def _holder(self, lock: dict[str, Any]) -> str | None:
        """Who is alive among those a lock file names; None when it can be taken."""
        try:
            processes = [ProcessName(str(item["host"]), int(item["pid"]), int(item["start"])) for item in lock["processes"]]
        except (KeyError, TypeError, ValueError):
            # Between its making and its first writing the file is empty; damaged, it is nobody's.
            return "it took the folder a moment ago" if self._age_s() < 2.0 else None
        mine = this_process()
        for rank, process in enumerate(processes):
            is_gone = process.is_gone()
            if process == mine or is_gone or (is_gone is None and self._age_s() > STALE_AFTER_S):
                continue
            return f"process {process.pid} on {process.host} (rank {rank})"
        return None

    def _age_s(self) -> float:
        """Seconds since the file was touched, by the clock of the file system, which may not be ours."""
        now = self._file.with_name(f".tmp-{self._file.name}-{os.getpid()}@{socket.gethostname()[:_HOST_BYTES].replace('-', '_')}")
        try:
            now.touch()
            return now.stat().st_mtime - self._file.stat().st_mtime
        except OSError:
            return 0.0
        finally:
            now.unlink(missing_ok=True)


def _stay_young(file: Path, done: threading.Event) -> None:
    while not done.wait(TOUCH_EVERY_S):
        with suppress(OSError):
            os.utime(file)


def _give_back(file: Path, token: str, done: threading.Event, owner: int) -> None:
    if os.getpid() == owner:  # forked workers have a copy of the lock, not the right to give it back
        done.set()
        if _token_in(file) == token:
            with suppress(OSError):
                file.unlink()


def _token_in(file: Path) -> str | None:
    with suppress(InputError, KeyError, TypeError):
        return str(read_json(file)["token"])
    return None


def _start_and_state(pid: int) -> tuple[int, str]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, ""
    return int(fields[19]), fields[0]
