"""``python -m benchmarks.large_batch``: gradient caching against the direct step, and its memory from small pools to large ones.

Every case runs in a process of its own; memory is the peak of anonymous resident memory above what the imports and the model take.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import sides
from benchmarks.workload import load_texts, write_encoder
from dpr.core.batch import BiEncoderBatch, TokenBatch
from dpr.core.distributed import Ranks
from dpr.losses.nll import BiEncoderNllLoss
from dpr.training.grad_cache import CachedStep
from dpr.training.step import DirectStep

CPU = torch.device("cpu")


def made_up_batch(size: int, *, question_tokens: int = 12, passage_tokens: int = 32, vocabulary: int = 30522) -> BiEncoderBatch:
    """``size`` questions, as many positives and as many hard negatives, all distinct."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int, length: int) -> TokenBatch:
        ids = torch.randint(5, vocabulary, (count * length,), generator=generator)
        return TokenBatch(ids, torch.full((count,), length), torch.zeros(count, dtype=torch.int64))

    slots = torch.arange(2 * size)
    return BiEncoderBatch(
        tokens(size, question_tokens),
        tokens(2 * size, passage_tokens),
        slots,
        torch.ones(2 * size, dtype=torch.bool),
        torch.stack([slots, slots], dim=1),
        slots[::2],
        torch.zeros(size, 0, 2, dtype=torch.int64),
        torch.zeros(size, 0, dtype=torch.bool),
    )


def one_step(folder: str, size: int, max_tokens: int) -> None:
    """Prints the seconds of a step and the growth of memory while it ran."""
    model = sides.our_model(Path(folder), dropout=0.1, length=64).train()
    batch = made_up_batch(size)
    before = _memory("RssAnon")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM starts again
    files = _memory("RssFile")
    step = CachedStep(model, BiEncoderNllLoss(), max_tokens=max_tokens, ranks=Ranks(), device=CPU)
    start = time.perf_counter()
    result = step(batch, num_pools=1, is_last=True)
    seconds = time.perf_counter() - start
    grown = _memory("VmHWM") - files - before
    print(json.dumps({"seconds": seconds, "mb": grown / 1024, "loss": float(result.loss_sum) / size}))


def _memory(key: str) -> int:
    """A line of /proc/self/status, in KiB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith(key + ":")).split()[1])


def against_direct(folder: Path, rounds: int) -> dict[str, float]:
    """Ratios of the time of cached steps to the direct step's, both on the same batches of real texts."""
    model = sides.our_model(folder, dropout=0.1, length=256).train()
    batches = sides.our_batches(model, load_texts(256), batch=128)
    total = batches[0].num_tokens
    steps = {"direct": DirectStep(model, BiEncoderNllLoss(), ranks=Ranks(), device=CPU)} | {
        f"1/{part}": CachedStep(model, BiEncoderNllLoss(), max_tokens=total // part, ranks=Ranks(), device=CPU) for part in (1, 2, 4, 16)
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step(batches[number % len(batches)], num_pools=1, is_last=True)
            model.zero_grad()
            if number:
                times[name].append(time.perf_counter() - start)
    return {
        name: statistics.median(mine / direct for mine, direct in zip(own, times["direct"], strict=True)) for name, own in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=[256, 1024, 4096, 8192])
    parser.add_argument("--largest", type=int, default=65536, help="with a model of one layer, 64 wide; 0 leaves it out")
    parser.add_argument("--one", nargs=3, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one_step(arguments.one[0], int(arguments.one[1]), int(arguments.one[2]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder, tiny, texts = Path(temporary) / "encoder", Path(temporary) / "tiny", load_texts(128)
        write_encoder(folder, texts, layers=4, width=256)
        print("\n| tokens held, of the batch's | time against the direct step |\n|---|---:|", flush=True)
        for name, ratio in against_direct(folder, arguments.rounds).items():
            print(f"| {name} | {ratio:.2f} |", flush=True)
        write_encoder(folder, texts, layers=2, width=128)
        write_encoder(tiny, texts, layers=1, width=64)
        print("\n| model | batch | passages | s | MB above the start |\n|---|---:|---:|---:|---:|", flush=True)
        cases = [("2 x 128", folder, size) for size in arguments.sizes]
        cases += [("1 x 64", tiny, arguments.largest)] if arguments.largest else []
        for label, model, size in cases:
            command = [sys.executable, "-m", "benchmarks.large_batch", "--one", str(model), str(size), "8192"]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
            print(f"| {label} | {size:,} | {2 * size:,} | {found['seconds']:.1f} | {found['mb']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
