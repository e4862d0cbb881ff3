"""Gradient caching against sentence-transformers' cached loss where both take the same memory: each side in
its own process.

A side loads, takes one step to warm up, and then takes a step for every line that it is sent; the two are
sent lines in turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks import sides
from benchmarks.measuring import PeakMemory
from benchmarks.workload import load_texts, write_encoder

BATCH, LENGTH, DROPOUT = 128, 256, 0.1
# What each side may hold at a time: sentence-transformers' own default, and the tokens that come to the same
# memory.
MINI_BATCH_SIZE, GRAD_CACHE_TOKENS = 32, 16384


def serve(side: str, budget: int, folder: Path) -> None:
    """A step for every line of standard input; answers each with seconds, the loss, and the growth of memory
    since before the first."""
    device, texts, tokens = torch.device("cpu"), load_texts(2 * BATCH), 0
    if side == "dpr":
        model = sides.our_model(folder, dropout=DROPOUT, length=LENGTH)
        batches = sides.our_batches(model, texts, batch=BATCH)
        tokens = batches[0].num_tokens
        step = sides.our_training(model, batches, device, grad_cache_tokens=budget)
    else:
        step = sides.st_training(
            folder, texts, device, batch=BATCH, length=LENGTH, dropout=DROPOUT, mini_batch_size=budget
        )
    memory = PeakMemory()
    step()
    print(json.dumps({"mb": memory.mb}), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        (loss,) = step()
        print(
            json.dumps(
                {"seconds": time.perf_counter() - start, "mb": memory.mb, "loss": loss, "tokens": tokens}
            ),
            flush=True,
        )


@contextmanager
def started(side: str, budget: int, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The process of a side, warmed up."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.equal_memory",
        "--side",
        side,
        "--budget",
        str(budget),
        "--folder",
        str(folder),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        _answer(process)
        try:
            yield process
        finally:
            process.stdin.close()


def _answer(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a side of the comparison ended; run it alone: " + " ".join(map(str, process.args)))  # type: ignore[arg-type]
    answer: dict[str, float] = json.loads(line)
    return answer


def take_turns(folder: Path, budgets: dict[str, int], rounds: int) -> dict[str, list[dict[str, float]]]:
    """The answers of both sides, one of each a round."""
    answers: dict[str, list[dict[str, float]]] = {side: [] for side in budgets}
    with ExitStack() as stack:
        processes = {
            side: stack.enter_context(started(side, budget, folder)) for side, budget in budgets.items()
        }
        for _ in range(rounds):
            for side, process in processes.items():
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                answers[side].append(_answer(process))
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=["dpr", "sentence-transformers"], required=True)
    parser.add_argument("--budget", type=int, required=True, help="tokens, or sequences of a mini-batch")
    parser.add_argument("--folder", type=Path, default=None, help="an encoder")
    parser.add_argument(
        "--steps", type=int, default=0, help="take so many steps alone instead of answering lines"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.folder is None:
            arguments.folder = Path(temporary)
            write_encoder(arguments.folder, load_texts(2 * BATCH), layers=4, width=256)
        if not arguments.steps:
            serve(arguments.side, arguments.budget, arguments.folder)
            return
        answers: Any = take_turns(arguments.folder, {arguments.side: arguments.budget}, arguments.steps)
        print(answers)


if __name__ == "__main__":
    main()
