"""A service of a run folder without processes of its own: its worker is a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dpr.serving.engine import Engine, open_runs
from dpr.serving.settings import ServeSettings
from dpr.serving.workers import WorkerLost
from tests.helpers.patience import patient


class LocalWorker:
    """What ``dpr.serving.workers.Worker`` is, around an engine in this process. ``before`` is called with the
    jobs of each batch."""

    pid = 0
    has_ended = False

    def __init__(self, engine: Engine, indexes: list[dict[str, Any]], before: Before) -> None:
        self.indexes, self._engine, self._before = indexes, engine, before

    async def ask(self, jobs: list[dict[str, Any]]) -> tuple[dict[str, Any], list[bytes]]:
        await asyncio.to_thread(self._before, jobs)
        found = await asyncio.to_thread(self._engine.answer, jobs)
        return {"statuses": [status for status, _ in found], "seconds": dict(self._engine.seconds)}, [
            body for _, body in found
        ]

    async def ended(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


def die(jobs: list[dict[str, Any]]) -> None:
    """For ``before``: the worker dies of a batch that holds the question "deadly"."""
    if any("deadly" in job.get("queries", []) for job in jobs):
        raise WorkerLost("worker 0 ended with code -9")


Before = Callable[[list[dict[str, Any]]], None]


def wait_until(condition: Callable[[], object]) -> None:
    """Asks again and again, until it is so."""
    end = time.monotonic() + patient(60)
    while not condition():
        assert time.monotonic() < end, "does not become true"
        time.sleep(0.01)


def local_app(
    runs: dict[str, Path], before: Before, token: str | None, settings: dict[str, Any]
) -> tuple[Any, Any, list[Exception]]:
    """The application, its service, and where failures of its start go. ``pause`` is the queue's; the other
    settings are the service's."""
    from dpr.serving.app import make_app
    from dpr.serving.figures import Figures
    from dpr.serving.queueing import Service

    pause = settings.pop("pause", 0.01)
    given = ServeSettings(**settings)
    given.check()

    async def start(began: Callable[[], None]) -> Any:
        indexes = await asyncio.to_thread(lambda: list(open_runs(runs, given)))
        return LocalWorker(Engine(indexes), [dict(index.facts) for index in indexes], before)

    figures = Figures()
    failures: list[Exception] = []
    service = Service(
        start,
        patience=given.timeout,
        pause=pause,
        workers=given.workers,
        batch=given.batch,
        observe=figures.stage,
    )
    return (
        make_app(given, service, figures=figures, token=token, on_failure=failures.append),
        service,
        failures,
    )


@contextmanager
def served(
    runs: dict[str, Path], *, before: Before = lambda jobs: None, token: str | None = None, **settings: Any
) -> Iterator[Any]:
    """A client of such a service, which is ready."""
    for package in ("fastapi", "prometheus_client"):
        pytest.importorskip(package, reason="the extra serve is not installed")
    from starlette.testclient import TestClient

    app, _, failures = local_app(runs, before, token, settings)
    with TestClient(app, base_url="http://127.0.0.1:8080", raise_server_exceptions=False) as client:
        while client.get("/readyz").status_code != 200:
            assert not failures, failures
            time.sleep(0.01)
        yield client


@contextmanager
def listening(
    runs: dict[str, Path], *, before: Before = lambda jobs: None, token: str | None = None, **settings: Any
) -> Iterator[str]:
    """The address of such a service, which is ready and listens at a free port of this machine."""
    from dpr.serving.server import Server

    app, service, failures = local_app(runs, before, token, settings)
    with socket.create_server(("127.0.0.1", 0)) as own:
        server = Server(app, ServeSettings(**settings), service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [own]}, daemon=True)
        thread.start()
        try:
            while not service.is_ready:
                assert thread.is_alive() and not failures, failures
                time.sleep(0.01)
            yield f"http://127.0.0.1:{own.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(30)
