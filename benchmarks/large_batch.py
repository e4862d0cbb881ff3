"""Gradient caching: against sentence-transformers' cached loss at equal memory, against the direct step, and
its memory from small global batches to large ones.

Every case of memory runs in a process of its own; memory is the peak of anonymous resident memory above what
imports and model take. ``python -m benchmarks.large_batch`` prints the last two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from benchmarks import equal_memory, sides
from benchmarks.measuring import PeakMemory, median_and_range
from benchmarks.page import Ratio, Section
from benchmarks.workload import load_texts, write_encoder
from dpr.core.batch import BiEncoderBatch, TokenBatch
from dpr.core.distributed import Ranks
from dpr.losses.nll import BiEncoderNllLoss
from dpr.training.grad_cache import CachedStep
from dpr.training.step import DirectStep, Step

CPU = torch.device("cpu")
RIVAL, RIVAL_BAR = "sentence-transformers", 2.5
COST_BAR, GROWTH_BAR = 1.38, 1.15
# Numbers of questions by layers and width of the model.
MEMORY_CASES = {(2, 128): (256, 1024, 4096, 8192), (4, 256): (256, 1024, 8192), (1, 64): (65536,)}


def made_up_batch(
    size: int, *, question_tokens: int = 12, passage_tokens: int = 32, vocabulary: int = 30522
) -> BiEncoderBatch:
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
        torch.ones(size, dtype=torch.float64),
    )


def one_step(folder: str, size: int, max_tokens: int) -> None:
    """Prints the seconds of a step and the growth of memory while it ran."""
    model = sides.our_model(Path(folder), dropout=0.1, length=64).train()
    batch = made_up_batch(size)
    memory = PeakMemory()
    step = CachedStep(model, BiEncoderNllLoss(), max_tokens=max_tokens, ranks=Ranks(), device=CPU)
    start = time.perf_counter()
    result = step(batch, num_batches=1, is_last=True)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "mb": memory.mb, "loss": float(result.loss) / size}))


def against_direct(folder: Path, rounds: int, size: int) -> dict[str, list[float]]:
    """Ratios of the time of cached steps to that of a direct step right before, both on the same batches of
    real texts."""
    model = sides.our_model(folder, dropout=0.1, length=256).train()
    batches = sides.our_batches(model, load_texts(4 * size), batch=size)
    total = min(batch.num_tokens for batch in batches)
    direct: Step = DirectStep(model, BiEncoderNllLoss(), ranks=Ranks(), device=CPU)
    steps: dict[str, Step] = {}
    for name, tokens in {"all": 2 * total, "1/2": total // 2, "1/4": total // 4, "1/16": total // 16}.items():
        steps[name] = CachedStep(model, BiEncoderNllLoss(), max_tokens=tokens, ranks=Ranks(), device=CPU)
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        batch = batches[number % len(batches)]
        for name, step in steps.items():
            before, own = (_seconds(one, batch, model) for one in (direct, step))
            if number:
                ratios[name].append(own / before)
    return ratios


def _seconds(step: Step, batch: BiEncoderBatch, model: nn.Module) -> float:
    start = time.perf_counter()
    step(batch, num_batches=1, is_last=True)
    elapsed = time.perf_counter() - start
    model.zero_grad()
    return elapsed


def direct_table(rounds: int, size: int) -> str:
    """How much longer a cached step takes, by the part of the batch's tokens that it may hold."""
    lines = ["| tokens held, of the batch's | time of the direct step's | at most |", "|---|---:|---:|"]
    with tempfile.TemporaryDirectory() as temporary:
        write_encoder(Path(temporary), load_texts(128), layers=4, width=256)
        for name, ratios in against_direct(Path(temporary), rounds, size).items():
            median, low, high = median_and_range(ratios)
            lines.append(
                f"| {name} | {median:.2f} ({low:.2f} to {high:.2f}){_missed(median, COST_BAR)} | {COST_BAR} |"
            )
    return "\n".join(lines)


def memory_table(cases: Mapping[tuple[int, int], Sequence[int]], max_tokens: int = 8192) -> str:
    """Memory and time of one cached step for cases like ``MEMORY_CASES``. Says how memory grows."""
    lines = ["| model | questions | passages | s | MB above the start |", "|---|---:|---:|---:|---:|"]
    grown = []
    with tempfile.TemporaryDirectory() as temporary:
        for (layers, width), sizes in cases.items():
            model, folder = f"{layers} x {width}", Path(temporary) / f"{layers}x{width}"
            write_encoder(folder, load_texts(128), layers=layers, width=width)
            peaks = []
            for size in sizes:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.large_batch",
                    "--one",
                    str(folder),
                    str(size),
                    str(max_tokens),
                ]
                found = json.loads(
                    subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[
                        -1
                    ]
                )
                lines.append(
                    f"| {model} | {size:,} | {2 * size:,} | {found['seconds']:.1f} | {found['mb']:.0f} |"
                )
                peaks.append(found["mb"])
            if len(peaks) > 1:
                growth = max(peaks) / min(peaks)
                grown.append(
                    f"{model}: the most is {growth:.2f} times the least{_missed(growth, GROWTH_BAR)}"
                )
    verdict = [f"{'; '.join(grown)}; target: at most {GROWTH_BAR}."] if grown else []
    return "\n\n".join(["\n".join(lines), *verdict])


def _missed(figure: float, most: float) -> str:
    return ", **missed**" if figure > most else ""


def against_rival(rounds: int) -> Section:
    """Our cached step against sentence-transformers' cached loss, where both take the same memory."""
    if find_spec("sentence_transformers") is None:
        raise SystemExit('sentence-transformers is not installed: pip install -e ".[bench]"')
    budgets = {"dpr": equal_memory.GRAD_CACHE_TOKENS, RIVAL: equal_memory.MINI_BATCH_SIZE}
    with tempfile.TemporaryDirectory() as temporary:
        write_encoder(Path(temporary), load_texts(128), layers=4, width=256)
        found = equal_memory.take_turns(Path(temporary), budgets, rounds)
    size = equal_memory.BATCH
    what = (
        f"One global batch of {size} questions and {2 * size} passages ({load_texts(2 * size).source} texts truncated"
        f" at {equal_memory.LENGTH} tokens), BERT of 4 layers x 256, dropout {equal_memory.DROPOUT:g},"
        " optimizer included, each side in a separate process, in turns. sentence-transformers runs its"
        " CachedMultipleNegativesRankingLoss with its default mini_batch_size; our grad_cache_tokens was"
        " chosen so that memory is about equal. Memory is the peak of what the process owns (VmHWM less"
        " files) above what it was before its first step."
    )
    tokens = int(found["dpr"][0]["tokens"])
    what += (
        f" Of the global batch's {tokens:,} tokens ours computes those twice that it may not hold,"
        f" {max(0, 1 - budgets['dpr'] / tokens):.0%}; the other side computes all of them twice, and their"
        " padding."
    )
    lines = ["| | budget | MB above the start | questions/s |", "|---|---|---:|---:|"]
    kinds = {"dpr": f"grad_cache_tokens={budgets['dpr']}", RIVAL: f"mini_batch_size={budgets[RIVAL]}"}
    for side, answers in found.items():
        rate = size / statistics.median(one["seconds"] for one in answers)
        lines.append(f"| {side} | {kinds[side]} | {max(one['mb'] for one in answers):,.0f} | {rate:.1f} |")
    ratios = [
        theirs["seconds"] / ours["seconds"] for ours, theirs in zip(found["dpr"], found[RIVAL], strict=True)
    ]
    ratio = Ratio.of(f"{RIVAL} {version(RIVAL)}, cached loss", ratios, RIVAL_BAR)
    return Section(
        "Large batch", "\n\n".join([what, "\n".join(lines), f"Ours is faster by {ratio.text}."]), (ratio,)
    )


def against_itself(rounds: int) -> Section:
    """What caching costs."""
    size = 64
    what = (
        f"Global batches of {size} questions and {2 * size} passages, BERT of 4 layers x 256, dropout 0.1; a direct"
        " step is taken before each cached one. What is held is not computed twice. Of a step's operations"
        " forward is a third, so computing it twice makes 1.33 times the direct step."
    )
    return Section("Cost of gradient caching", f"{what}\n\n{direct_table(rounds, size)}")


def memory_of_global_batches() -> Section:
    """How memory grows with the global batch."""
    what = (
        "One step with grad_cache_tokens=8192, questions of 12 tokens and passages of 32, each in a process"
        " of its own. The global batch's vectors and their gradients are in it; of the graphs as many tokens fewer"
        " are held as these take."
    )
    table = memory_table(MEMORY_CASES)
    return Section("Memory of gradient caching", f"{what}\n\n{table}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=3, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one_step(arguments.one[0], int(arguments.one[1]), int(arguments.one[2]))
        return
    print(direct_table(arguments.rounds, size=128), end="\n\n", flush=True)
    print(memory_table(MEMORY_CASES))


if __name__ == "__main__":
    main()
