"""A real service with real workers: one is killed and the files change under load, and every answer is right
and arrives."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.ranking import to_rankings
from dpr.indexer.registry import Texts
from tests.architecture.source_files import REPOSITORY
from tests.helpers.jobs import retrieve
from tests.helpers.patience import patient

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("prometheus_client", reason="the extra serve is not installed")

QUESTIONS = [f"word{number} shared" for number in range(20)]


def corpus(version: int) -> list[Passage]:
    return [
        Passage(
            f"word{number % 20} shared " * (1 + number % 3) + f"v{version}", "", f"v{version}p{number:02d}"
        )
        for number in range(60)
    ]


def write_run(folder: Path, version: int) -> list[list[str]]:
    """A run that searches words, and what it finds."""
    folder.mkdir(exist_ok=True)
    passages = corpus(version)
    write_passages(folder / "new.tsv", passages)
    os.replace(folder / "new.tsv", folder / "corpus.tsv")
    index = Bm25Index.build(
        Texts([str(item.id) for item in passages], [f"{item.title} {item.text}" for item in passages])
    )
    return [[key for key, _ in ranking] for ranking in to_rankings(index.search(QUESTIONS, 3))]


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

    def ask(
        self, path: str, body: Any = None, connection: http.client.HTTPConnection | None = None
    ) -> tuple[int, Any]:
        connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(60))
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, text.decode() if path == "/metrics" else json.loads(text)

    def wait(self, path: str, wanted: str) -> None:
        limit = time.monotonic() + patient(60)
        while wanted not in str(self.ask(path)[1]):
            assert time.monotonic() < limit, "".join(self.lines)
            time.sleep(0.05)

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the workers in /proc")
def test_killed_workers_and_reloads_cost_no_answer(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    expected = {1: write_run(folder, 1)}
    (folder / "questions.tsv").write_text("shared\t['a']\n")
    corpus_file = folder / "corpus.tsv"
    arguments = [
        "indexer=bm25",
        f"qa_dataset={folder / 'questions.tsv'}",
        f"ctx_datasets=[{corpus_file}]",
        "match=none",
    ]
    assert retrieve([*arguments, f"search_folder={folder}"]) == 0
    served = Served(str(folder))
    wrong: list[Any] = []
    answered = dict.fromkeys((1, 2), 0)
    is_over = threading.Event()

    def load(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=patient(60))
        while not is_over.is_set():
            place = number = (number + 7) % len(QUESTIONS)
            status, found = served.ask("/search", {"queries": [QUESTIONS[place]], "k": 3}, connection)
            hits = [hit["id"] for hit in found["results"][0]] if status == 200 else found
            version = next((version for version in expected if hits == expected[version][place]), None)
            if version is None:
                wrong.append((status, hits))
                return
            answered[version] += 1
            time.sleep(0.01)

    try:
        served.wait("/readyz", "ready'")
        threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        os.kill(served.workers()[0], signal.SIGKILL)
        served.wait("/metrics", "dpr_worker_restarts 1.0")
        served.wait("/metrics", "dpr_workers 1.0")
        expected[2] = write_run(folder, 2)
        served.process.send_signal(signal.SIGHUP)
        served.wait("/info", "'generation': 2")
        so_far = answered[2]
        while answered[2] < so_far + 20 and not wrong:
            time.sleep(0.01)
        shutil.move(folder / "corpus.tsv", folder / "gone.tsv")
        status, told = served.ask("/reload", {})
        assert status == 503 and "corpus.tsv" in told["error"]
        assert served.ask("/readyz")[0] == 200
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGHUP,
        ):  # as a terminal or systemd sends them to the whole group
            os.kill(served.workers()[0], number)
        time.sleep(0.2)
        is_over.set()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert "dpr_worker_restarts 1.0" in served.ask("/metrics")[1]
        assert answered[1] > 0
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(patient(30)) == 0
    finally:
        is_over.set()
        served.process.kill()
        served.process.wait()
    assert "Traceback" not in "".join(served.lines)
