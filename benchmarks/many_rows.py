"""``python -m benchmarks.many_rows [--rows 10000000]``: opening a training file of very many short rows, and
what an epoch's order takes.

Every phase runs in a process of its own. Growth is of ``RssAnon`` after the imports, at its highest, as in
``benchmarks.memory``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.memory import Watch
from dpr.core.logs import configure_logging
from dpr.data.iterators import ShardedDataIterator
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.training_sets import open_training_set

BATCH, READ_EVERY = 96, 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--phase", choices=list(PHASES), default=None, help="used by the benchmark itself")
    arguments = parser.parse_args()
    if arguments.phase is not None:
        configure_logging()
        file = arguments.folder / "train.jsonl"
        print(json.dumps(PHASES[arguments.phase](file, arguments.rows)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        for phase in PHASES:
            command = [
                sys.executable,
                "-m",
                "benchmarks.many_rows",
                f"--rows={arguments.rows}",
                f"--folder={temporary}",
                f"--phase={phase}",
            ]
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                check=True,
                env={**os.environ, "DPR_CACHE": f"{temporary}/cache"},
            )
            print(f"{phase}: {done.stdout.decode().splitlines()[-1]}", flush=True)


def write(file: Path, rows: int) -> dict[str, float]:
    """Rows of some 100 bytes; every tenth question occurs twice."""
    started = time.perf_counter()
    with open(file, "w", encoding="ascii") as out:
        for row in range(rows):
            question = row - row % 10 if row % 10 == 1 else row
            out.write(
                f'{{"question": "question number {question}", "answers": [], "positive_ctxs": [{{"title": "",'
                f' "text": "passage number {row}"}}], "hard_negative_ctxs": []}}\n'
            )
    return {"seconds": time.perf_counter() - started, "bytes": file.stat().st_size}


def convert(file: Path, rows: int) -> dict[str, float]:
    """The first opening, which parses the file."""
    with Watch() as watch:
        seconds, _ = _opened(file, rows)
    return {"seconds": seconds, "growth_mb": watch.growth / 2**20}


def epoch(file: Path, rows: int) -> dict[str, float]:
    """A later opening, then all global batches of an epoch in order; of some of them the rows are read."""
    with Watch() as watch:
        seconds, data = _opened(file, rows)
        order = ShardedDataIterator(len(data), global_batch_size=BATCH, seed=1)
        started = time.perf_counter()
        order.rows(0)
        first, read = time.perf_counter() - started, 0
        for global_batch in range(order.num_batches):
            numbers = order.rows(global_batch)
            if global_batch % READ_EVERY == 0:
                read += sum(
                    bool(data.known_positives(int(row))) and bool(data[int(row)].positives) for row in numbers
                )
    walked = time.perf_counter() - started
    return {
        "open_s": seconds,
        "order_s": first,
        "epoch_s": walked,
        "rows_read": read,
        "growth_mb": watch.growth / 2**20,
    }


PHASES = {"write": write, "convert": convert, "epoch": epoch}


def _opened(file: Path, rows: int) -> tuple[float, TrainingSet]:
    started = time.perf_counter()
    data = open_training_set(file, name="rows")
    seconds = time.perf_counter() - started
    if len(data) != rows:
        raise SystemExit(f"{len(data)} rows were opened, not {rows}")
    return seconds, data


if __name__ == "__main__":
    main()
