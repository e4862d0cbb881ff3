"""Requests wait in one queue; each worker takes what queued while it was busy. No timer, so that a lone request waits for nobody.

A worker that dies is started again, and what it was working on is asked again, now one request at a time: a request that ends its worker
twice fails alone. A reload starts new workers beside the old ones and then swaps them; the old ones finish what they have.
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
_PAUSE_S = 1.0
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
        start: starts a worker; raises DprError where it cannot open the indexes.
        batch: questions of a batch at most, one request excepted.
        observe: called with the seconds of each stage of a batch, and with its number of questions as ``batch``.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[Worker]],
        *,
        workers: int = 1,
        batch: int = 64,
        observe: Callable[[str, float], None] = lambda name, value: None,
    ) -> None:
        self._start, self._num_workers, self._batch, self._observe = start, workers, batch, observe
        self._waiting: deque[_Job] = deque()
        self._changed = asyncio.Condition()
        self._reloading = asyncio.Lock()
        self._generation: _Generation | None = None
        self._pids: dict[asyncio.Task[None], int] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self.restarts = 0

    @property
    def is_ready(self) -> bool:
        """Whether a worker is there to answer."""
        return bool(self._pids)

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
        """Opens the indexes as they are on disk now, in new processes, and lets them answer instead. Also the first start.

        Raises:
            DprError: they cannot be opened; the old ones go on.
        """
        async with self._reloading:
            started = await asyncio.gather(*(self._start() for _ in range(self._num_workers)), return_exceptions=True)
            workers = [worker for worker in started if not isinstance(worker, BaseException)]
            if failed := [error for error in started if isinstance(error, BaseException)]:
                await asyncio.gather(*(worker.close() for worker in workers))
                raise failed[0]
            if any(worker.indexes != workers[0].indexes for worker in workers):
                await asyncio.gather(*(worker.close() for worker in workers))
                raise DprError("the files changed while they were opened; reload again")
            old, self._generation = self._generation, _Generation(self.generation + 1, workers[0].indexes)
            self._generation.drivers = [asyncio.create_task(self._drive(worker, self._generation)) for worker in workers]
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
        """Ends the workers, those that are still busy after ``patience`` seconds by force; what still waits is refused."""
        for job in self._waiting:
            _fail(job, Unavailable("the service is stopping"))
        self._waiting.clear()
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
                if taken and (job.deaths or taken[0].deaths or sum(item.weight for item in taken) + job.weight > self._batch):
                    break
                taken.append(job)
            self._waiting.popleft()
        return taken

    async def _drive(self, worker: Worker | None, generation: _Generation) -> None:
        """Lets a worker, and those that take its place, answer batches."""
        task = asyncio.current_task()
        assert task is not None
        while not generation.is_retired:
            if worker is None:
                worker = await self._replace(task, generation)
                continue
            jobs = await self._take(worker, generation)
            if jobs:
                self._observe_batch(jobs)
            elif not worker.has_ended:
                continue
            try:
                told, bodies = await worker.ask([job.value for job in jobs])
            except WorkerLost as lost:
                logger.error("%s; it is started again", lost)
                self._pids.pop(task, None)
                worker = None
                self._return(jobs, str(lost))
                await self._notify()  # another worker may be free
                continue
            for name, seconds in told["seconds"].items():
                self._observe(name, seconds)
            for job, status, body in zip(jobs, told["statuses"], bodies, strict=True):
                if not job.answer.done():
                    job.answer.set_result((status, body))
        self._pids.pop(task, None)
        if worker is not None:
            await worker.close()

    def _observe_batch(self, jobs: list[_Job]) -> None:
        start = time.perf_counter()
        for job in jobs:
            self._observe("queue", start - job.since)
        self._observe("batch", sum(job.weight for job in jobs))

    async def _replace(self, task: asyncio.Task[None], generation: _Generation) -> Worker | None:
        """A new worker instead of one that died; None, after a pause, where it cannot be started."""
        self.restarts += 1
        try:
            worker = await self._start()
        except DprError as error:
            logger.error("a worker cannot be started: %s", first_line(error))
            await asyncio.sleep(_PAUSE_S)
            return None
        if worker.indexes != generation.indexes:
            logger.warning("the files have changed since the service opened them; POST /reload opens them for all workers")
            generation.indexes = worker.indexes
        self._watch(task, worker)
        return worker

    def _return(self, jobs: list[_Job], reason: str) -> None:
        """Puts what a worker was asked before it died first in the queue again."""
        for job in reversed(jobs):
            job.deaths += 1
            if job.deaths < _MOST_DEATHS:
                self._waiting.appendleft(job)
            else:
                _fail(job, Unavailable(f"the process that searched died twice ({reason})"))


def _fail(job: _Job, error: Exception) -> None:
    if not job.answer.done():
        job.answer.set_exception(error)
