"""A service of a run folder in this process."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpr.serving.settings import ServeSettings
from tests.helpers.patience import patient

Before = Callable[[list[str]], Any]


def nothing(questions: list[str]) -> None:
    """For ``before``: nothing happens before a search."""


def wait_until(condition: Callable[[], object]) -> None:
    """Asks again and again, until it is so."""
    end = time.monotonic() + patient(60)
    while not condition():
        assert time.monotonic() < end, "does not become true"
        time.sleep(0.01)


class Gate:
    """For ``before``: holds searches until it is opened, and notes their questions."""

    def __init__(self) -> None:
        self.searched: list[list[str]] = []
        self.open = threading.Event()

    def __call__(self, questions: list[str]) -> None:
        self.searched.append(questions)
        self.open.wait(20)


def asked_together(client: Any, gate: Gate, *asked: tuple[str, Any]) -> list[Any]:
    """The answers to requests (path, JSON), all but the first of which wait while that one is searched."""
    with ThreadPoolExecutor(len(asked)) as pool:
        first, *others = [lambda path=path, body=body: client.post(path, json=body) for path, body in asked]
        answers = [pool.submit(first)]
        wait_until(lambda: gate.searched)
        answers += [pool.submit(other) for other in others]
        wait_until(lambda: f"dpr_requests_waiting {len(others)}.0" in client.get("/metrics").text)
        gate.open.set()
        return [answer.result() for answer in answers]


def local_app(
    runs: dict[str, Path], before: Before, token: str | None, settings: ServeSettings
) -> tuple[Any, Any, list[Exception]]:
    """Returns the application, its engine and the failures of its start; ``before`` gets each search's questions."""
    for package in ("fastapi", "prometheus_client", "uvicorn"):
        pytest.importorskip(package, reason="the extra serve is not installed")
    from dpr.serving.app import make_app
    from dpr.serving.engine import ServedIndex, open_runs

    @dataclass(frozen=True)
    class Noted(ServedIndex):
        def search(self, questions: list[str], *arguments: Any, **options: Any) -> Any:
            before(questions)
            return super().search(questions, *arguments, **options)

    settings.check()
    app, engine = make_app(
        settings,
        lambda: (Noted(**vars(index)) for index in open_runs(runs, settings)),
        token=token,
    )
    return app, engine, engine.failures


@contextmanager
def served(
    runs: dict[str, Path], *, before: Before = nothing, token: str | None = None, **settings: Any
) -> Iterator[Any]:
    """A client of such a service, which is ready."""
    app, engine, failures = local_app(runs, before, token, ServeSettings(**settings))
    from starlette.testclient import TestClient

    with TestClient(app, base_url="http://127.0.0.1:8080", raise_server_exceptions=False) as client:
        while client.get("/readyz").status_code != 200:
            assert not failures, failures
            time.sleep(0.01)
        yield client
    engine.stop()


@contextmanager
def listening(
    runs: dict[str, Path], *, before: Before = nothing, token: str | None = None, **settings: Any
) -> Iterator[str]:
    """The address of such a service, which is ready and listens at a free port of this machine."""
    given = ServeSettings(**settings)
    app, engine, failures = local_app(runs, before, token, given)
    from dpr.serving.server import make_server

    with socket.create_server(("127.0.0.1", 0)) as own:
        server = make_server(app, given)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [own]}, daemon=True)
        thread.start()
        try:
            while not engine.indexes:
                assert thread.is_alive() and not failures, failures
                time.sleep(0.01)
            yield f"http://127.0.0.1:{own.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(30)
            engine.stop()
