"""A process that searches, as the service sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from dpr.core.errors import DprError
from dpr.serving import frames

_LAST_S = 5.0


class WorkerLost(Exception):
    """The process died; what it was asked may be asked again, for a search changes nothing."""


class Worker:
    """One process: it opens the indexes, says what they are, and then answers a batch at a time until its
    input ends."""

    def __init__(self, process: asyncio.subprocess.Process, indexes: list[dict[str, Any]]) -> None:
        self._process, self.indexes = process, indexes

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def ended(self) -> None:
        """Waits until the process has ended."""
        await self._process.wait()

    @classmethod
    async def start(
        cls, command: Sequence[str], began: Callable[[], None] = lambda: None, *, limit: float | None = None
    ) -> Worker:
        """Starts a process and waits until it is ready.

        Args:
            began: called before the process looks at the files.
            limit: seconds it may take; None = any.

        Raises:
            DprError: it says why it cannot open the indexes, it died, or it is not ready in time.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        except OSError as error:  # no memory, no more files or processes
            raise DprError(f"a worker cannot be started: {error.strerror or error}") from None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(limit):
                hello, _ = await frames.receive(process.stdout)
                if "opening" in hello:
                    began()
                    hello, _ = await frames.receive(process.stdout)
        except EOFError:
            raise DprError(f"a worker ended with code {await process.wait()} before it was ready") from None
        except TimeoutError:
            await _kill(process)
            raise DprError(
                f"a worker was not ready within {limit:g} s; open_timeout= gives it more time"
            ) from None
        except asyncio.CancelledError:
            await _kill(process)
            raise
        if "error" in hello:
            await process.wait()
            raise DprError(hello["error"], exit_code=hello["exit_code"])
        return cls(process, hello["indexes"])

    async def ask(self, jobs: list[dict[str, Any]]) -> tuple[dict[str, Any], list[bytes]]:
        """What the worker says about a batch (``statuses``, ``seconds``), and the answer to each job.

        Raises:
            WorkerLost: it died. Where the call is cancelled, the process is killed.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(frames.packed({"jobs": jobs}))
            await self._process.stdin.drain()
            return await frames.receive(self._process.stdout)
        except (EOFError, ConnectionError):
            await self._process.wait()
            raise WorkerLost(f"worker {self.pid} ended with code {self._process.returncode}") from None
        except asyncio.CancelledError:
            self._process.kill()
            raise

    async def close(self) -> None:
        """Lets the process end."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, OSError):
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _LAST_S)
        except TimeoutError:
            await _kill(self._process)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Ends a process by force. One that the system cannot end yet, as it waits for a disk, is not waited
    for."""
    process.kill()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _LAST_S)
