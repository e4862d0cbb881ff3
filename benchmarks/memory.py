"""``python -m benchmarks.memory [--only jobs|embedding] [--out benchmarks/results/memory.md]``: how much anonymous memory
the jobs take that meet the largest files.

Every case runs in a process of its own (or two, for a group), which imports everything first and then watches
``RssAnon`` of ``/proc/self/status``: memory that belongs to the process alone. Pages of mapped files, which
the system takes back when it needs them, are not part of it. What is reported is the highest value seen less
the value after the imports.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from benchmarks.memory_cases import CASES, MEBI, SIZES, prepare, prepare_corpora

INTRODUCTION = """# Memory

Growth of a process's anonymous resident memory (`RssAnon`) after its imports, at its highest, in MB of 2^20 bytes. Each case runs in a
fresh process; its model and tokenizer count too. `make memory` makes this page and fails when a bar is missed. Files of ten million rows
and token stores of 2 GB of text: [large_files.md](large_files.md)."""


class Watch:
    """The highest ``RssAnon`` of this process (and its ``children``) while the block runs, less what it was
    at the beginning, in bytes. With ``shared_once``, pages that children share with it are counted once,
    which takes longer to look at."""

    def __init__(self, every_s: float = 0.002, *, children: bool = False, shared_once: bool = False) -> None:
        self._every_s, self._ended = every_s, threading.Event()
        self._measure = anonymous_bytes
        if children or shared_once:
            self._measure = partial(
                anonymous_bytes_with_children, proportional_bytes if shared_once else anonymous_bytes
            )
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.growth = 0

    def __enter__(self) -> Watch:
        self._start = self._measure()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._note()

    def _look(self) -> None:
        while not self._ended.wait(self._every_s):
            self._note()

    def _note(self) -> None:
        self.growth = max(self.growth, self._measure() - self._start)


def anonymous_bytes(process: int | str = "self") -> int:
    with open(f"/proc/{process}/status", encoding="ascii") as status:
        return next((int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon:")), 0)


def proportional_bytes(process: int | str = "self") -> int:
    """Anonymous memory, of pages that several processes have only this one's share."""
    with open(f"/proc/{process}/smaps_rollup", encoding="ascii") as lines:
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon:")), 0)


def anonymous_bytes_with_children(of: Callable[..., int] = anonymous_bytes) -> int:
    total = of()
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # a thread or a child that has ended meanwhile
            children = Path(f"/proc/self/task/{thread}/children").read_text().split()
            total += sum(of(int(child)) for child in children)
    return total


@dataclass(frozen=True)
class Row:
    """A line of the table: the greatest growth of the case's processes, and what it may be."""

    what: str
    growth: int
    bar: int | None

    @property
    def is_missed(self) -> bool:
        return self.bar is not None and self.growth > self.bar

    def __str__(self) -> str:
        bar = "" if self.bar is None else f"{self.bar / MEBI:.0f}" + (" **missed**" if self.is_missed else "")
        return f"| {self.what} | {self.growth / MEBI:.0f} | {bar} |"


@dataclass(frozen=True)
class Measured:
    """Of a case's processes the greatest growth and the highest resident memory, mapped files included, in
    bytes; and its seconds."""

    growth: int
    peak: int
    seconds: float


def measure(name: str, folder: Path, *, processes: int = 1) -> Measured:
    """Runs a case in fresh processes."""
    command = [sys.executable, "-m", "benchmarks.memory", "--case", name, "--folder", str(folder)]
    environment = os.environ | {
        "DPR_CACHE": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    groups = [environment | extra for extra in _group(processes)]
    started = [subprocess.Popen(command, env=each, stdout=subprocess.PIPE, text=True) for each in groups]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"the case {name} failed")
    found = [Measured(**json.loads(output.splitlines()[-1])) for output in outputs]
    return Measured(*(max(getattr(one, name) for one in found) for name in ("growth", "peak", "seconds")))


def _group(processes: int) -> Iterator[dict[str, str]]:
    if processes == 1:
        yield {}
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for rank in range(processes):
        place = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": processes,
            "LOCAL_WORLD_SIZE": processes,
            "MASTER_PORT": port,
        }
        yield {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"} | {
            key: str(value) for key, value in place.items()
        }


def rows(folder: Path) -> Iterator[Row]:
    """The cases of training and validation, in the order in which they need each other."""
    size = f"{SIZES.training_bytes / 1e6:.0f} MB DPR JSON"
    yield Row(f"{size}: first opening (parsed and converted)", measure("conversion", folder).growth, None)
    yield Row(f"{size}: opened again, one epoch of batches", measure("reading", folder).growth, 150 * MEBI)
    yield Row(
        "the same, each of 2 processes of a group", measure("reading", folder, processes=2).growth, 150 * MEBI
    )
    measure("conversion_dev", folder)
    global_batch = (
        f"{SIZES.questions:,} questions x {SIZES.questions * SIZES.passages_per_question:,} passages"
    )
    yield Row(
        f"average rank of {global_batch}, vectors of {SIZES.dimension}",
        measure("average_rank", folder).growth,
        300 * MEBI,
    )


@dataclass(frozen=True)
class CorpusRow:
    """A line of the table of embedding."""

    passages: int
    measured: Measured
    bar: int | None

    @property
    def is_missed(self) -> bool:
        return self.bar is not None and self.measured.growth > self.bar

    def __str__(self) -> str:
        bar = "" if self.bar is None else f"{self.bar / MEBI:.0f}" + (" **missed**" if self.is_missed else "")
        found = self.measured
        speed = f"{self.passages / found.seconds:,.0f}"
        return (
            f"| {self.passages:,} | {found.growth / MEBI:.0f} | {bar} | {found.peak / MEBI:.0f} | {speed} |"
        )


def corpus_rows(folder: Path) -> Iterator[CorpusRow]:
    """Corpora of tenfold length each, of which a longer one may take 15% more: what allocators make of more
    chunks.

    The first is two chunks, fewer than are held at a time, so the bars begin with the third.
    """
    before: list[Measured] = []
    for passages in SIZES.corpora:
        measured = measure(f"embed_{passages}", folder)
        yield CorpusRow(passages, measured, int(1.15 * before[-1].growth) if len(before) > 1 else None)
        before.append(measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="write the table to this Markdown file")
    parser.add_argument("--only", choices=("jobs", "embedding"), help="one of the two tables")
    parser.add_argument("--case", choices=sorted(CASES), help=argparse.SUPPRESS)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where data is made (default: a temporary folder)"
    )
    arguments = parser.parse_args()
    if arguments.case:
        _run_case(CASES[arguments.case], arguments.folder)
        return
    parts, missed = [INTRODUCTION], False
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        if arguments.only != "embedding":
            prepare(folder, random.Random(0))
            parts.append(_heading())
            missed |= _add_table(parts, "| | growth, MB | at most |\n|---|---:|---:|", rows(folder))
        if arguments.only != "jobs":
            prepare_corpora(folder, random.Random(0))
            parts.append(_embedding_heading())
            header = (
                "| passages | growth, MB | at most | peak with mapped files, MB | passages/s"
                " |\n|---:|---:|---:|---:|---:|"
            )
            missed |= _add_table(parts, header, corpus_rows(folder))
    if arguments.out is not None:
        arguments.out.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    raise SystemExit(1 if missed else 0)


def _run_case(work: Callable[[Path], None], folder: Path) -> None:
    start = time.perf_counter()
    with Watch() as watch:
        work(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"growth": watch.growth, "peak": peak, "seconds": time.perf_counter() - start}))


def _add_table(parts: list[str], header: str, table: Iterable[Row | CorpusRow]) -> bool:
    """Adds a table, printing what is new as it comes; whether a bar was missed."""
    parts.append(header)
    missed = False
    print(*parts[-2:], sep="\n\n", flush=True)
    for row in table:
        parts[-1] += f"\n{row}"
        print(row, flush=True)
        missed |= row.is_missed
    return missed


def _versions() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "pyarrow"))
    return (
        f"{platform.machine()} CPU, Python {platform.python_version()}, {versions}, {datetime.date.today()}"
    )


def _heading() -> str:
    return (
        f"{_versions()}. Texts are made up, about {SIZES.words} words a passage; the encoder is a BERT of 1"
        " layer x 32 with a projection. Command: `python -m benchmarks.memory --only jobs`."
    )


def _embedding_heading() -> str:
    return (
        f"## Embedding\n\n{_versions()}, {len(os.sched_getaffinity(0))} cores. `dpr embed` of short passages"
        f" (about {SIZES.short_words} made-up words) by a BERT of 1 layer x 64, from the start of the job,"
        " loading included, to its manifest. Command: `python -m benchmarks.memory --only embedding`."
    )


if __name__ == "__main__":
    main()
