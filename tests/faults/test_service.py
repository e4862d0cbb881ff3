"""A real service under load: what it accepted before SIGTERM is answered, rightly, and it ends with code 0."""

import http.client
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dpr.cli.main import main
from dpr.retrieval.retriever import Retriever
from tests.helpers.patience import patient
from tests.helpers.processes import fork_server

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("prometheus_client", reason="the extra serve is not installed")

QUESTIONS = [f"word{number} shared" for number in range(20)]


def serve(arguments: list[str], log: str) -> None:
    """In a process of its own, which has imported torch."""
    os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    sys.exit(main(["serve", *arguments, "port=0"]))


class Service:
    """The process, and requests to it."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.process = fork_server().Process(target=serve, args=([str(folder / "run")], str(self.log)))
        self.process.start()
        limit = time.monotonic() + patient(60)
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/", self.text)):
            assert time.monotonic() < limit and self.process.is_alive(), self.text
            time.sleep(0.01)
        self.port = int(found[1])

    @property
    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def wait(self) -> int | None:
        self.process.join(patient(30))
        return self.process.exitcode

    def sent(self, path: str, body: Any = None) -> http.client.HTTPConnection:
        """A connection whose request is under way."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(60))
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def read(self, path: str) -> tuple[int, str]:
        answer = self.sent(path).getresponse()
        return answer.status, answer.read().decode()


def test_what_was_accepted_is_answered_before_the_service_ends(tmp_path: Path) -> None:
    texts = [f"word{number % 20} shared " * (1 + number % 3) for number in range(60)]
    retriever = Retriever.build(None, texts, folder=tmp_path / "run")
    expected = [[(hit.id, hit.score) for hit in retriever.search(question, 50)] for question in QUESTIONS]
    served = Service(tmp_path)
    try:
        limit = time.monotonic() + patient(60)
        while served.read("/readyz")[0] != 200:
            assert time.monotonic() < limit, served.text
            time.sleep(0.05)
        body = {"queries": QUESTIONS, "k": 50, "explain": True}
        asked = [served.sent("/search", body) for _ in range(12)]
        for _ in range(2):  # connections are accepted one after another: now those of before are
            metrics = served.read("/metrics")[1]
        found = re.search(r"^dpr_requests_waiting (\d+)", metrics, re.MULTILINE)
        assert found and int(found[1]) > 0
        served.process.terminate()
        for connection in asked:
            answer = connection.getresponse()
            assert answer.status == 200
            for number, hits in enumerate(json.loads(answer.read())["results"]):
                shown = [(hit["id"], hit["score"]) for hit in hits]
                assert shown == expected[number]
        assert served.wait() == 0
    finally:
        served.process.kill()
        served.process.join()
    assert "Traceback" not in served.text


def test_a_service_that_still_opens_its_indexes_can_be_ended(tmp_path: Path) -> None:
    Retriever.build(None, ["ka no"], folder=tmp_path / "run")
    served = Service(tmp_path)
    served.process.terminate()
    assert served.wait() in (0, -signal.SIGTERM)
    assert "Traceback" not in served.text
