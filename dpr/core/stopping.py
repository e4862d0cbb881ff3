"""Signals that ask a run to stop. They are recorded, and handled at a point where all ranks can agree and a
checkpoint can be written."""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from multiprocessing import parent_process
from types import FrameType, TracebackType
from typing import Any, Self

# Windows has neither SIGUSR1, SIGHUP nor SIGALRM.
_SIGNALS = tuple(signal.Signals[name] for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name))
_LAUNCHER_ENDED = 1
"""The number of SIGHUP, if the system has it."""
_SAME_REQUEST_S = 1.0
_WORKER_GRACE_S = 30


class SignalBlock(ABC):
    """A ``with`` block in which ``_handle`` handles SIGTERM, SIGINT and SIGUSR1. It has no effect outside the
    main thread."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @abstractmethod
    def _handle(self, number: int, frame: FrameType | None) -> None: ...


class StopSignals(SignalBlock):
    """A block in which SIGTERM, SIGINT and SIGUSR1 set a flag instead of ending the process.

    A signal a second or more after the first ends the process at once, without saving, with exit code 128 +
    its number. Within that second it counts as the same request: a terminal, a batch system or a launcher
    often signals whole process groups and then each process again.

    Under torchrun, the end of the launcher is a request too; otherwise the workers would be orphaned.
    """

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._since = 0.0
        self._launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None

    def requested(self) -> int:
        """Returns the number of the signal that asks this process to stop, SIGHUP if its launcher has ended,
        or 0 without a request."""
        if not self._number and self._launcher is not None and os.getppid() != self._launcher:
            return _LAUNCHER_ENDED
        return self._number

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._number:
            self._number = number
            self._since = now
        elif now - self._since >= _SAME_REQUEST_S:
            # No buffered output and no exit handlers, which could block: a second request means that the
            # process must end.
            os.write(2, f"{signal.Signals(number).name} again: ending at once, without saving\n".encode())
            os._exit(128 + number)


def describe(number: int) -> str:
    """Returns the source of a stop request, for a message."""
    return "the launcher has ended" if number == _LAUNCHER_ENDED else signal.Signals(number).name


def end_with_parent() -> None:
    """Makes a worker process end when its parent does. Without this, a worker whose parent was killed waits for
    work forever."""

    def watch() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def ignore_in_worker() -> None:
    """Makes a worker process ignore stop signals. They reach the whole process group, but the run decides
    when to stop and needs its workers until then.

    SIGTERM is also how the run ends a worker that does not end by itself, so it takes effect after half a
    minute.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(_WORKER_GRACE_S))
