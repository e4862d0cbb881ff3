"""``python -m benchmarks.serving RUN_FOLDER --questions FILE``: load on ``dpr serve``, with and without
batching, and a long run with reloads and killed workers. Every answer is compared with that to the same
question asked alone.

    python -m benchmarks.serving runs/quickstart --questions runs/quickstart/data/test_questions.jsonl
    python -m benchmarks.serving runs/quickstart --questions runs/quickstart/data/test_questions.jsonl
    --minutes 10
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpr.formats.question_sets import read_questions

K = 10
_EVERY_S = 2.0
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


def is_same(found: Hits, expected: Hits) -> bool:
    """Whether both lists are the same but for the order of scores that differ by rounding: a batch is encoded
    in other sums."""
    if len(found) != len(expected):
        return False
    scores = np.array([[score for _, score in hits] for hits in (found, expected)])
    known = dict(expected)
    last = expected[-1][1]
    return bool(np.allclose(scores[0], scores[1], rtol=1e-4, atol=1e-5)) and all(
        abs(score - known.get(key, last)) <= 1e-4 * abs(score) + 1e-5 for key, score in found
    )


async def load(
    port: int,
    index: str | None,
    questions: Sequence[str],
    expected: Sequence[Hits],
    *,
    connections: int,
    seconds: float,
    done: Load | None = None,
) -> Load:
    """So many connections, each asking one question after another; ``done`` is filled meanwhile."""
    done = Load() if done is None else done
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
            if not is_same(found, expected[place]):
                done.wrong.append(f"{questions[place]}: {found[:3]} instead of {expected[place][:3]}")

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(connections)))
    done.seconds = time.perf_counter() - start
    return done


@contextlib.contextmanager
def service(folder: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Process id and port of a service that is ready."""
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
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def workers(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory(pid: int) -> float:
    """MB of a process and its workers, shared pages counted once each (PSS)."""
    total = 0
    for each in [pid, *workers(pid)]:
        found = re.search(r"Pss:\s+(\d+)", Path(f"/proc/{each}/smaps_rollup").read_text())
        total += int(found[1]) if found else 0
    return total / 1024


async def answers_alone(port: int, index: str | None, questions: Sequence[str]) -> list[Hits]:
    connection = Connection(port, index)
    return [await connection.hits(question) for question in questions]


@dataclass
class Memory:
    """Of each process, over a load: requests answered so far, and its own memory in MB (what it has not
    mapped from files)."""

    samples: defaultdict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def note(self, pid: int, answered: int) -> None:
        for each in [pid, *workers(pid)]:
            with contextlib.suppress(OSError):
                if found := re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{each}/status").read_text()):
                    self.samples["service" if each == pid else f"worker {each}"].append(
                        (answered, int(found[1]) / 1024)
                    )

    def text(self) -> str:
        """A line for each process that was there for a minute: its memory in the second half of that time,
        when it is warm."""
        lines = []
        for name, seen in self.samples.items():
            answered, used = np.array(seen[len(seen) // 2 :]).T
            if len(seen) * _EVERY_S >= 60:
                slope = float(np.polyfit(answered, used, 1)[0]) * 1000
                lines.append(
                    f"{name}: {used[0]:.1f} -> {used[-1]:.1f} MB over {np.ptp(answered):.0f} answers,"
                    f" {slope:+.4f} MB per 1,000"
                )
        return "\n".join(lines)


async def disturb(pid: int, port: int, minutes: float, samples: list[float]) -> None:
    """Every minute a reload, half a minute later a killed worker; memory of all processes is noted before
    each."""
    for _ in range(round(minutes)):
        await asyncio.sleep(25)
        os.kill(workers(pid)[0], signal.SIGKILL)
        await asyncio.sleep(25)
        samples.append(memory(pid))
        print(f"memory {samples[-1]:.0f} MB", flush=True)
        status, told = await Connection(port, None).post("/reload", {})
        assert status == 200, told
        await asyncio.sleep(10)


async def long_run(pid: int, port: int, questions: Sequence[str], options: argparse.Namespace) -> bool:
    expected = await answers_alone(port, options.index, questions)
    done, own = Load(), Memory()
    after_minutes: list[float] = []

    async def note() -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            own.note(pid, len(done.latencies))

    noting = asyncio.create_task(note())
    disturbing = asyncio.create_task(
        disturb(pid, port, 0 if options.calm else options.minutes, after_minutes)
    )
    await load(
        port,
        options.index,
        questions,
        expected,
        connections=options.connections,
        seconds=options.minutes * 60,
        done=done,
    )
    await disturbing
    noting.cancel()
    print(done.text(), *done.wrong[:5], own.text(), sep="\n")
    if after_minutes:
        print(f"memory of all before each reload: {', '.join(f'{value:.0f}' for value in after_minutes)} MB")
    return not done.wrong


def compare(questions: Sequence[str], options: argparse.Namespace) -> bool:
    """Batching against one question at a time, in turns on services of the same files."""
    rates: list[tuple[float, float]] = []
    is_right = True
    with (
        service(options.folder, "batch=1", *options.settings) as (_, one),
        service(options.folder, *options.settings) as (_, many),
    ):
        expected = asyncio.run(answers_alone(one, options.index, questions))
        for _ in range(options.rounds):
            both = []
            for port in (one, many):
                both.append(
                    asyncio.run(
                        load(
                            port,
                            options.index,
                            questions,
                            expected,
                            connections=options.connections,
                            seconds=options.seconds,
                        )
                    )
                )
                print(
                    f"{'batch=1' if port == one else 'batching'}: {both[-1].text()}",
                    *both[-1].wrong[:3],
                    sep="\n  ",
                    flush=True,
                )
                is_right &= not both[-1].wrong
            first, second = (len(done.latencies) / done.seconds for done in both)
            slow, quick = (float(np.percentile(done.latencies, 99)) for done in both)
            rates.append((second / first, quick / slow))
    throughput, tail = np.median(np.array(rates), axis=0)
    print(
        f"throughput x {throughput:.2f} (at least 3.5), p99 x {tail:.2f} (at most 0.33), medians of"
        f" {options.rounds} rounds"
    )
    return is_right


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
    parser.add_argument(
        "--minutes",
        type=float,
        default=0.0,
        help="instead: so long, with a reload and a killed worker each minute",
    )
    parser.add_argument(
        "--calm", action="store_true", help="with --minutes: no reload, and no worker is killed"
    )
    options = parser.parse_args()
    questions = [
        question.text for question in itertools.islice(read_questions(options.questions), options.count)
    ]
    if not options.minutes:
        return 0 if compare(questions, options) else 1
    with service(options.folder, *options.settings) as (pid, port):
        return 0 if asyncio.run(long_run(pid, port, questions, options)) else 1


if __name__ == "__main__":
    sys.exit(main())
