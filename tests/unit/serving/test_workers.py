"""Processes that die, hang or cannot be started, as the queue before them handles it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.core.errors import DprError
from dpr.serving.queueing import Service, Unavailable
from dpr.serving.workers import Worker, WorkerLost
from tests.helpers.patience import patient

SCRIPT = """
import os, sys, time
from dpr.serving.frames import packed, read

def send(*frame):
    sys.stdout.buffer.write(packed(*frame))
    sys.stdout.buffer.flush()

send({"indexes": [{"name": sys.argv[1]}]})
while (frame := read(sys.stdin.buffer)) is not None:
    for job in frame["jobs"]:
        if job.get("hang"):
            time.sleep(600)
        if "die_once" in job and not os.path.exists(job["die_once"]):
            open(job["die_once"], "w").close()
            os._exit(1)
    send({"statuses": [200] * len(frame["jobs"]), "seconds": {}}, [str(os.getpid()).encode()] * len(frame["jobs"]))
"""


def command(name: str = "index") -> list[str]:
    return [sys.executable, "-c", SCRIPT, name]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(60)):
        while not condition():
            await asyncio.sleep(0.01)


class Starts:
    """Starts ``free`` workers, and further ones once the gate is open."""

    def __init__(self, free: int) -> None:
        self.free, self.gate = free, asyncio.Event()

    async def __call__(self, began: Callable[[], None]) -> Worker:
        self.free -= 1
        if self.free < 0:
            await self.gate.wait()
        return await Worker.start(command(), began)


def test_the_death_of_an_idle_worker_shows_and_it_is_started_again_before_anybody_asks() -> None:
    async def check() -> None:
        service = Service(starts := Starts(1), patience=patient(60))
        await service.reload()
        [first] = service.pids
        os.kill(first, signal.SIGKILL)
        await until(lambda: not service.is_ready)
        starts.gate.set()
        await until(lambda: service.is_ready)
        assert service.restarts == 1
        assert await service.ask({}, timeout=patient(60)) == (200, str(service.pids[0]).encode())
        await service.close()
        await until(lambda: not service.pids)

    asyncio.run(check())


def test_what_a_dead_worker_was_asked_goes_to_one_that_is_free(tmp_path: Path) -> None:
    async def check() -> None:
        service = Service(starts := Starts(2), patience=patient(60), workers=2)
        await service.reload()
        status, _ = await service.ask({"die_once": str(tmp_path / "died")}, timeout=patient(10))
        assert (status, service.restarts) == (200, 1)
        starts.gate.set()
        await service.close()

    asyncio.run(check())


@pytest.mark.parametrize("part", ["_observe_batch", "_take", "_replace"])
def test_an_unexpected_exception_is_logged_and_the_worker_replaced(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        service = Service(lambda began: Worker.start(command(), began), patience=patient(60), pause=0.01)
        await service.reload()
        [first], whole, raised = service.pids, getattr(service, part), []

        def fail(*arguments: Any) -> Any:
            if not raised:
                raised.append(True)
                raise RuntimeError("nobody expects this")
            return whole(*arguments)

        monkeypatch.setattr(service, part, fail)
        if part == "_replace":
            os.kill(first, signal.SIGKILL)
        assert (await service.ask({}, timeout=patient(60)))[
            0
        ] == 200  # the batch under way when _take is called is that of before
        await until(lambda: bool(raised) and service.is_ready)
        assert (await service.ask({}, timeout=patient(60)))[0] == 200
        assert service.pids != [first] and service.restarts >= 1
        await service.close()
        await until(lambda: not service.pids)

    asyncio.run(check())
    assert "nobody expects this" in caplog.text and "Traceback" in caplog.text


def test_a_worker_that_stands_still_is_replaced_and_nobody_waits_longer() -> None:
    async def check() -> None:
        service = Service(lambda began: Worker.start(command(), began), patience=1, pause=0.01, batch=1)
        await service.reload()
        [stopped] = service.pids
        os.kill(stopped, signal.SIGSTOP)
        asked = [service.ask({}, timeout=0.2) for _ in range(5)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Unavailable] * 5
        assert (service.num_waiting, service.restarts) == (0, 0)
        assert (await service.ask({}, timeout=patient(60)))[1] != str(stopped).encode()
        assert service.restarts >= 1
        await until(lambda: not Path(f"/proc/{stopped}").exists())
        await service.close()
        await until(lambda: not service.pids)

    asyncio.run(check())


def test_a_worker_that_hangs_is_killed_at_the_end() -> None:
    async def check() -> None:
        service = Service(lambda began: Worker.start(command(), began), patience=patient(60))
        await service.reload()
        with pytest.raises(Unavailable):
            await service.ask({"hang": True}, timeout=0.1)
        async with asyncio.timeout(patient(10)):
            await service.close(patience=0.1)
        await until(lambda: not service.pids)

    asyncio.run(check())


class Dying:
    """A worker that has ended once it was started."""

    pid, has_ended, indexes = 0, True, [{"name": "index"}]

    async def ended(self) -> None:
        pass

    async def ask(self, jobs: Any) -> Any:
        raise WorkerLost("worker 0 ended with code 1")

    async def close(self) -> None:
        pass


def test_a_worker_that_dies_at_once_is_started_after_pauses_that_grow() -> None:
    times: list[float] = []

    async def start(began: Callable[[], None]) -> Any:
        times.append(time.monotonic())
        return Dying()

    async def check() -> None:
        service = Service(start, patience=1, pause=0.02)
        await service.reload()
        # none for a moment after each start
        await until(lambda: len(times) >= 6 and service.trouble is not None)
        assert service.trouble is not None and "times in a row" in service.trouble
        await service.close()
        assert service.trouble is None

    asyncio.run(check())
    pauses = np.diff(times)[1:5]
    assert (pauses >= 0.02 * np.array([1, 2, 4, 8])).all()


def test_reloads_asked_before_a_file_is_looked_at_are_one_and_those_asked_later_another() -> None:
    starts: list[Callable[[], None]] = []
    gate = asyncio.Semaphore(0)

    async def start(began: Callable[[], None]) -> Worker:
        starts.append(began)
        await gate.acquire()
        return await Worker.start(command(str(len(starts))), began)

    async def check() -> None:
        service = Service(start, patience=patient(60))
        first = [asyncio.create_task(service.reload()) for _ in range(3)]
        await until(lambda: bool(starts))
        starts[0]()  # what is asked from now on may come after a change that the first does not see
        second = [asyncio.create_task(service.reload()) for _ in range(3)]
        gate.release()
        await asyncio.gather(*first)
        assert service.indexes == [{"name": "1"}]
        gate.release()
        await asyncio.gather(*second)
        assert (service.indexes, service.generation, len(starts)) == ([{"name": "2"}], 2, 2)
        pending = asyncio.create_task(service.reload())
        await until(lambda: len(starts) == 3)
        await service.close()
        assert (await asyncio.gather(pending, return_exceptions=True)) and not service.pids

    asyncio.run(asyncio.wait_for(check(), patient(60)))


def test_workers_that_opened_different_files_do_not_answer_beside_each_other() -> None:
    async def check() -> None:
        names = iter(["old", "new", "new", "new"])
        service = Service(
            lambda began: Worker.start(command(next(names)), began), patience=patient(60), workers=2
        )
        with pytest.raises(DprError, match="the files changed while they were opened"):
            await service.reload()
        assert not service.is_ready
        await service.reload()
        assert service.indexes == [{"name": "new"}]
        await service.close()

    asyncio.run(check())


def test_a_process_that_the_system_cannot_start_is_an_error_in_a_sentence() -> None:
    with pytest.raises(DprError, match="a worker cannot be started: No such file or directory"):
        asyncio.run(Worker.start(["/nothing/here"]))


def test_a_process_that_does_not_get_ready_is_killed() -> None:
    with pytest.raises(DprError, match=r"not ready within 0\.1 s; open_timeout= gives"):
        asyncio.run(Worker.start([sys.executable, "-c", "import time; time.sleep(600)"], limit=0.1))
