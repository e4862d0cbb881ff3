"""Requests wait in one queue; each worker takes what queued while it was busy. No timer, so that a lone
request waits for nobody.

A worker that dies is started again, and what it was working on is asked again, now one request at a time: a
request that ends its worker twice fails alone. One that answers nothing for much longer than anybody waits is
killed. Pauses that grow come before the restarts of a worker that dies again and again soon after its start.
A reload starts new workers beside the old ones and then swaps them; the old ones finish what they have.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from dpr.core.errors import DprError, first_line
from dpr.core.logs import get_logger
from dpr.serving.workers import Worker, WorkerLost

logger = get_logger(__name__)
_MOST_DEATHS = 2
_SOON_S = 10.0
_LONGEST_PAUSE_S = 30.0
_LAST_S = 10.0


@dataclass(eq=False)
class _Job:
    value: dict[str, Any]
    weight: int
    """Questions in it."""
    answer: asyncio.Future[tuple[int, bytes]]
    since: float = field(default_factory=time.perf_counter)
    deaths: int = 0


@dataclass(eq=False)
class _Generation:
    """Workers that opened the same files at the same time."""

    number: int
    indexes: list[dict[str, Any]]
    drivers: list[asyncio.Task[None]] = field(default_factory=list)
    is_retired: bool = False


class Unavailable(Exception):
    """No worker can answer in time."""


class Service:
    """The queue and its workers.

    Args:
        start: starts a worker, and calls what it is given before the worker looks at the files; raises
            DprError where it cannot open the indexes.
        patience: seconds that a batch may take; a worker that takes longer hangs.
        pause: seconds before the second restart in a row of a worker that dies soon; twice as long before
        each further one.
        batch: questions of a batch at most, one request excepted.
        observe: called with the seconds of each stage of a batch, and with its number of questions as
        ``batch``.
    """

    def __init__(
        self,
        start: Callable[[Callable[[], None]], Awaitable[Worker]],
        *,
        patience: float,
        pause: float = 1.0,
        workers: int = 1,
        batch: int = 64,
        observe: Callable[[str, float], None] = lambda name, value: None,
    ) -> None:
        self._start, self._num_workers, self._batch, self._observe = start, workers, batch, observe
        self._patience, self._pause = patience, pause
        self._waiting: deque[_Job] = deque()
        self._changed = asyncio.Condition()
        self._reloading = asyncio.Lock()
        self._reloads: set[asyncio.Task[None]] = set()
        self._next_reload: asyncio.Task[None] | None = None
        self._generation: _Generation | None = None
        self._pids: dict[asyncio.Task[None], int] = {}
        self._troubles: dict[asyncio.Task[None], str] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self.restarts = 0

    @property
    def is_ready(self) -> bool:
        """Whether a worker is there to answer."""
        return bool(self._pids)

    @property
    def trouble(self) -> str | None:
        """Why a worker is not there and will not be for a while; None where none is in trouble."""
        return next(iter(self._troubles.values()), None)

    @property
    def pids(self) -> list[int]:
        """Of the workers, those of an earlier generation included that are not done yet."""
        return list(self._pids.values())

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def indexes(self) -> list[dict[str, Any]]:
        """What is served, as the workers describe it; nothing before they are ready."""
        return [] if self._generation is None else self._generation.indexes

    @property
    def generation(self) -> int:
        """How often the indexes were opened."""
        return 0 if self._generation is None else self._generation.number

    async def reload(self) -> None:
        """Opens the indexes as they are on disk now, in new processes, and lets them answer instead. Also the
        first start.

        All who ask before the new processes look at the files share one reload. Who asks later may have
        changed a file since, and shares the next.

        Raises:
            DprError: they cannot be opened; the old ones go on.
        """
        if self._next_reload is None:
            self._next_reload = made = asyncio.create_task(self._reload())
            self._reloads.add(made)
            made.add_done_callback(self._reloads.discard)
        await asyncio.shield(self._next_reload)

    async def _reload(self) -> None:
        task = asyncio.current_task()

        def begin() -> None:
            if self._next_reload is task:
                self._next_reload = None

        async with self._reloading:
            try:
                started = await asyncio.gather(
                    *(self._start(begin) for _ in range(self._num_workers)), return_exceptions=True
                )
            finally:
                begin()
            workers = [worker for worker in started if not isinstance(worker, BaseException)]
            if failed := [error for error in started if isinstance(error, BaseException)]:
                await asyncio.gather(*(worker.close() for worker in workers))
                raise failed[0]
            if any(worker.indexes != workers[0].indexes for worker in workers):
                await asyncio.gather(*(worker.close() for worker in workers))
                raise DprError("the files changed while they were opened; reload again")
            old, self._generation = self._generation, _Generation(self.generation + 1, workers[0].indexes)
            self._generation.drivers = [
                asyncio.create_task(self._drive(worker, self._generation)) for worker in workers
            ]
            for task, worker in zip(self._generation.drivers, workers, strict=True):
                self._watch(task, worker)
            if old is not None:
                await self._retire(old)

    def _watch(self, task: asyncio.Task[None], worker: Worker) -> None:
        """Counts a worker until it ends, which its driver then hears even where nobody asks anything."""
        self._pids[task] = worker.pid

        async def watch() -> None:
            await worker.ended()
            if self._pids.get(task) == worker.pid:
                del self._pids[task]
            await self._notify()

        self._watches.add(made := asyncio.create_task(watch()))
        made.add_done_callback(self._watches.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _retire(self, generation: _Generation) -> None:
        generation.is_retired = True
        await self._notify()
        await asyncio.gather(*generation.drivers)

    async def close(self, patience: float = _LAST_S) -> None:
        """Ends the workers, those that are still busy after ``patience`` seconds by force; what still waits
        is refused."""
        for job in self._waiting:
            _fail(job, Unavailable("the service is stopping"))
        self._waiting.clear()
        for task in self._reloads:
            task.cancel()
        await asyncio.gather(*self._reloads, return_exceptions=True)
        if self._generation is not None:
            try:
                await asyncio.wait_for(self._retire(self._generation), patience)
            except TimeoutError:
                logger.error("a worker was still busy after %g s and was killed", patience)

    async def ask(self, value: dict[str, Any], *, weight: int = 1, timeout: float) -> tuple[int, bytes]:
        """Status and body of the answer to a job.

        Raises:
            Unavailable: there was none in time.
        """
        job = _Job(value, weight, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        try:
            await self._notify()
            return await asyncio.wait_for(job.answer, timeout)
        except TimeoutError:
            raise Unavailable(f"there was no answer within {timeout:g} s") from None
        finally:
            with contextlib.suppress(ValueError):  # nobody waits for it any more
                self._waiting.remove(job)

    async def _take(self, worker: Worker, generation: _Generation) -> list[_Job]:
        """The next batch of a worker; none when it has ended or the generation is retired."""
        async with self._changed:
            await self._changed.wait_for(lambda: generation.is_retired or worker.has_ended or self._waiting)
        taken: list[_Job] = []
        while self._waiting and not generation.is_retired and not worker.has_ended:
            job = self._waiting[0]
            if not job.answer.done():  # otherwise whoever asked has left
                if taken and (
                    job.deaths
                    or taken[0].deaths
                    or sum(item.weight for item in taken) + job.weight > self._batch
                ):
                    break
                taken.append(job)
            self._waiting.popleft()
        return taken

    async def _drive(self, worker: Worker | None, generation: _Generation) -> None:
        """Lets a worker, and those that take its place, answer batches."""
        task = asyncio.current_task()
        assert task is not None
        failures, since = 0, time.monotonic()
        while not generation.is_retired:
            jobs: list[_Job] = []
            try:
                if worker is None:
                    worker = await self._replace(task, generation, failures)
                    failures, since = failures + (worker is None), time.monotonic()
                    continue
                jobs = await self._take(worker, generation)
                if jobs:
                    self._observe_batch(jobs)
                elif not worker.has_ended:
                    continue
                async with asyncio.timeout(self._patience):  # wait_for of Python 3.11 can lose a cancellation
                    told, bodies = await worker.ask([job.value for job in jobs])
                for name, seconds in told["seconds"].items():
                    self._observe(name, seconds)
                for job, status, body in zip(jobs, told["statuses"], bodies, strict=True):
                    if not job.answer.done():
                        job.answer.set_result((status, body))
            # also what nobody expects: a driver that ended would leave its worker's place empty for good
            except Exception as error:
                lost = self._told_of(error, worker)
                failures = failures + 1 if time.monotonic() - since < _SOON_S else 1
                self._pids.pop(task, None)
                self._return(jobs, lost)
                if worker is not None and not isinstance(error, WorkerLost | TimeoutError):
                    with contextlib.suppress(Exception):
                        await worker.close()
                worker = None
                await self._notify()  # another worker may be free
        self._pids.pop(task, None)
        self._troubles.pop(task, None)
        if worker is not None:
            await worker.close()

    def _told_of(self, error: Exception, worker: Worker | None) -> str:
        """Logs how a worker was lost, and returns it in words."""
        if isinstance(error, WorkerLost):
            lost = str(error)
        elif isinstance(error, TimeoutError) and worker is not None:
            lost = (
                f"worker {worker.pid} has not answered for {self._patience:g} s, twice the timeout=, and was"
                " killed"
            )
        else:
            lost = f"the queue of a worker has failed ({first_line(error)})"
            logger.error("%s; the worker is started again", lost, exc_info=error)
            return lost
        logger.error("%s; it is started again", lost)
        return lost

    def _observe_batch(self, jobs: list[_Job]) -> None:
        start = time.perf_counter()
        for job in jobs:
            self._observe("queue", start - job.since)
        self._observe("batch", sum(job.weight for job in jobs))

    async def _replace(
        self, task: asyncio.Task[None], generation: _Generation, failures: int
    ) -> Worker | None:
        """A new worker instead of one that died, after a pause where ``failures`` in a row came soon; None
        where it cannot be started."""
        if failures > 1:
            pause = min(self._pause * 2.0 ** (failures - 2), _LONGEST_PAUSE_S)
            self._troubles[task] = (
                f"a worker has ended soon after its start, {failures} times in a row; the service's log"
                " says why"
            )
            logger.error(
                "a worker has ended soon after its start, %d times in a row; it is started again in %g s",
                failures,
                pause,
            )
            if await self._is_retired_within(generation, pause):
                return None
        self.restarts += 1
        try:
            worker = await self._start(lambda: None)
        except DprError as error:
            logger.error("a worker cannot be started: %s", first_line(error))
            return None
        self._troubles.pop(task, None)
        if worker.indexes != generation.indexes:
            logger.warning(
                "the files have changed since the service opened them; POST /reload opens them for all"
                " workers"
            )
            generation.indexes = worker.indexes
        self._watch(task, worker)
        return worker

    async def _is_retired_within(self, generation: _Generation, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: generation.is_retired)
        return generation.is_retired

    def _return(self, jobs: list[_Job], reason: str) -> None:
        """Puts what a worker was asked before it died, and somebody still waits for, first in the queue
        again."""
        for job in reversed(jobs):
            job.deaths += 1
            if job.answer.done():
                continue
            if job.deaths < _MOST_DEATHS:
                self._waiting.appendleft(job)
            else:
                _fail(job, Unavailable(f"the process that searched died twice ({reason})"))


def _fail(job: _Job, error: Exception) -> None:
    if not job.answer.done():
        job.answer.set_exception(error)
