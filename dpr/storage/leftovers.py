"""Files with names of this toolkit. They are never opened through a link; temporary ones are named after
their process, and removed when it is gone."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dpr.core.errors import OutputError

HOST_BYTES = 64
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_TEMPORARY = ".tmp-"
REPLACED = ".old-"
_OWNED = re.compile(
    r"(?P<kind>\.tmp-|\.old-)(?P<name>.+)-(?P<pid>\d+)(?:\.(?P<start>\d+))?@(?P<host>[^@]+)", re.DOTALL
)
_cleared: set[tuple[int, Path]] = set()


@dataclass(frozen=True)
class ProcessName:
    """Identity of a process. A later process with the same number is not mistaken for it."""

    host: str
    pid: int
    start: int
    """Start of the process in clock ticks since the machine started; 0 if that is unavailable."""

    def is_gone(self) -> bool | None:
        """Returns whether it has ended; None for a process of another machine."""
        if self.host != _host():
            return None
        start = _start_of(self.pid)
        return start is None or (0 not in (start, self.start) and start != self.start)


def this_process() -> ProcessName:
    """Returns the name of the calling process."""
    return ProcessName(_host(), os.getpid(), _start_of(os.getpid()) or 0)


def temporary_beside(target: Path, kind: str = _TEMPORARY) -> Path:
    """Returns the path at which this process writes the future ``target``, or to which it moves a file or
    folder that it replaces."""
    process = this_process()
    return target.parent / f"{kind}{target.name}-{process.pid}.{process.start}@{_in_a_name(process.host)}"


def open_own(path: Path, mode: str, *, buffering: int = -1) -> IO[Any]:
    """Opens a file to write it, as ``open`` does, but neither through a symbolic link nor if it is not a
    plain file. "x" replaces an existing file.

    Others may have put a link to a file of yours in a place where the name of a lock, a log or a temporary
    file can be predicted.

    Raises:
        OutputError: a link or something else is in its place.
    """
    if "x" in mode:
        remove(path)
    kind = path.lstat().st_mode if os.path.lexists(path) else stat.S_IFREG
    try:
        if not stat.S_ISREG(kind):
            raise OSError(errno.ELOOP, "")
        return open(path, mode, buffering, opener=lambda name, flags: os.open(name, flags | _NO_LINK, 0o666))
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        found = "it is a symbolic link, or not a plain file"
        hint = "remove it; it may lead to a file that must not be overwritten"
        raise OutputError(path, found, hint=hint) from None


def remove_leftovers(parent: Path) -> None:
    """Removes the files that killed writers left in ``parent``, but none of a living process or of a process
    on another host.

    A folder that was moved aside to be replaced is restored if the replacement never arrived.
    """
    with suppress(OSError):
        with os.scandir(parent) as entries:  # a folder of vectors may have a million, which are not held
            names = sorted(entry.name for entry in entries if entry.name.startswith((_TEMPORARY, REPLACED)))
        for path in (Path(parent, name) for name in names):
            owned = _OWNED.fullmatch(path.name)
            if owned is None or owned["host"] != _in_a_name(_host()):
                continue
            owner = ProcessName(_host(), int(owned["pid"]), int(owned["start"] or 0))
            # A container starts every run with the same process number; names of earlier versions have no
            # start time.
            if not (owner.is_gone() or (owner.pid == os.getpid() and not owner.start)):
                continue
            if owned["kind"] == REPLACED and not (target := path.with_name(owned["name"])).exists():
                with suppress(OSError):
                    os.rename(path, target)
                    continue
            remove(path)


def remove_leftovers_once(parent: Path) -> None:
    """Calls ``remove_leftovers`` the first time this process is about to write in ``parent``."""
    key = (os.getpid(), parent)
    if key not in _cleared:
        _cleared.add(key)
        remove_leftovers(parent)


def remove(path: Path) -> None:
    """Removes a file or a folder as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _host() -> str:
    return socket.gethostname()[:HOST_BYTES]


def _in_a_name(host: str) -> str:
    return re.sub(r"[-/@]", "_", host)


def _start_of(pid: int) -> int | None:
    """Returns the start of a process of this machine, in clock ticks; 0 if that is unavailable, None if the
    process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else int(fields[19])
    except OSError:  # it has ended, or the system has no /proc
        pass
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    return 0
