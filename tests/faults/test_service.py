"""A real service under load: what it accepted before SIGTERM is answered, rightly, and it ends with code 0."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dpr.retriever import Retriever
from tests.architecture.source_files import REPOSITORY
from tests.helpers.patience import patient

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("prometheus_client", reason="the extra serve is not installed")

QUESTIONS = [f"word{number} shared" for number in range(20)]


class Served:
    """The process, and requests to it."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dpr", "serve", *arguments, "port=0"],
            cwd=REPOSITORY,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", first)
        assert found, first
        self.port, self.lines = int(found[1]), [first]
        threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()), daemon=True).start()

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
    served = Served(str(tmp_path / "run"))
    try:
        limit = time.monotonic() + patient(60)
        while served.read("/readyz")[0] != 200:
            assert time.monotonic() < limit, "".join(served.lines)
            time.sleep(0.05)
        body = {"queries": QUESTIONS, "k": 50, "explain": True}
        asked = [served.sent("/search", body) for _ in range(12)]
        for _ in range(2):  # connections are accepted one after another: now those of before are
            metrics = served.read("/metrics")[1]
        found = re.search(r"^dpr_requests_waiting (\d+)", metrics, re.MULTILINE)
        assert found and int(found[1]) > 0
        served.process.send_signal(signal.SIGTERM)
        for connection in asked:
            answer = connection.getresponse()
            assert answer.status == 200
            for number, hits in enumerate(json.loads(answer.read())["results"]):
                shown = [(hit["id"], hit["score"]) for hit in hits]
                assert shown == expected[number]
        assert served.process.wait(patient(30)) == 0
    finally:
        served.process.kill()
        served.process.wait()
    assert "Traceback" not in "".join(served.lines)


def test_a_service_that_still_opens_its_indexes_can_be_ended(tmp_path: Path) -> None:
    Retriever.build(None, ["ka no"], folder=tmp_path / "run")
    served = Served(str(tmp_path / "run"))
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(patient(30)) in (0, -signal.SIGTERM)
    assert "Traceback" not in "".join(served.lines)
