"""``python -m benchmarks.serving RUN_FOLDER --questions FILE``: load on ``dpr serve``, from one connection and
from many, whose questions are batched. Every answer is compared with that to the same question asked alone.

    python -m benchmarks.serving runs/quickstart --questions runs/quickstart/data/test_questions.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpr.formats.question_sets import read_questions

K = 10
Hits = list[tuple[str, float]]


@dataclass
class Load:
    """What a load was answered."""

    latencies: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def text(self) -> str:
        times = np.array(self.latencies) * 1000
        rate = len(times) / self.seconds
        return (
            f"{len(times)} answers, {rate:.1f} a second, p50 {np.percentile(times, 50):.0f} ms, p99"
            f" {np.percentile(times, 99):.0f} ms, {len(self.wrong)} wrong or lost"
        )


class Connection:
    """One connection that is kept open."""

    def __init__(self, port: int, index: str | None) -> None:
        self.port, self.index = port, index
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, value: Any) -> tuple[int, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self._streams
        body = json.dumps(value).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length:"
            f" {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer)
        assert length is not None, answer
        return int(answer.split()[1]), json.loads(await reader.readexactly(int(length[1])))

    async def hits(self, question: str) -> Hits:
        status, found = await self.post("/search", {"queries": [question], "k": K, "index": self.index})
        assert status == 200, found
        return [(hit["id"], hit["score"]) for hit in found["results"][0]]


async def load(
    port: int,
    index: str | None,
    questions: Sequence[str],
    expected: Sequence[Hits],
    *,
    connections: int,
    seconds: float,
) -> Load:
    """So many connections, each asking one question after another."""
    done = Load()
    places = itertools.cycle(range(len(questions)))
    end = time.perf_counter() + seconds

    async def client() -> None:
        connection = Connection(port, index)
        while time.perf_counter() < end:
            place = next(places)
            start = time.perf_counter()
            try:
                found = await connection.hits(questions[place])
            except (OSError, AssertionError, asyncio.IncompleteReadError) as error:
                done.wrong.append(f"{type(error).__name__}: {str(error)[:200]}")
                connection = Connection(port, index)
                continue
            done.latencies.append(time.perf_counter() - start)
            if found != expected[place]:
                done.wrong.append(f"{questions[place]}: {found[:3]} instead of {expected[place][:3]}")

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(connections)))
    done.seconds = time.perf_counter() - start
    return done


@contextlib.contextmanager
def service(folder: str, *arguments: str) -> Iterator[int]:
    """The port of a service that is ready."""
    command = [sys.executable, "-m", "dpr", "serve", folder, "port=0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = int(re.search(r":(\d+)/", process.stderr.readline())[1])  # type: ignore[index]
        for line in process.stderr:
            if " ready: " in line:
                break
            print(line, end="", file=sys.stderr)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


async def answers_alone(port: int, index: str | None, questions: Sequence[str]) -> list[Hits]:
    connection = Connection(port, index)
    return [await connection.hits(question) for question in questions]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("settings", nargs="*", help="of dpr serve, e.g. modes=dense")
    parser.add_argument("--index", help="name of the index to ask (default: the folder's own)")
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200, help="questions to ask (default %(default)s)")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    questions = [
        question.text for question in itertools.islice(read_questions(options.questions), options.count)
    ]
    gains: list[float] = []
    is_right = True
    with service(options.folder, *options.settings) as port:
        expected = asyncio.run(answers_alone(port, options.index, questions))
        for _ in range(options.rounds):
            rates = []
            for connections in (1, options.connections):
                done = asyncio.run(
                    load(
                        port,
                        options.index,
                        questions,
                        expected,
                        connections=connections,
                        seconds=options.seconds,
                    )
                )
                print(f"{connections} connections: {done.text()}", *done.wrong[:3], sep="\n  ", flush=True)
                is_right &= not done.wrong
                rates.append(len(done.latencies) / done.seconds)
            gains.append(rates[1] / rates[0])
    print(f"throughput x {np.median(gains):.2f}, median of {options.rounds} rounds")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
