"""``python -m benchmarks.scaling``: what sharing a global batch between processes costs on a machine whose cores do
not become more.

1. The same global batch of questions on 1, 2 and 4 processes, one thread each, all on one core: work that is shared
   costs nothing more, so what a step takes longer is what processes cost (messages, and each its own update
   of all weights).
2. The collectives of a step one by one: each is entered together, after a barrier, so that its own time and
   the wait for the last process are told apart. Nothing overlaps here, so these are what a step would pay if
   nothing could be hidden.
3. Two processes on two cores, gathering beside the question tower's work and gathering while everything
   waits, in turns.
4. What every rank does for the whole global batch, however many share it: finding which contexts count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.sides import our_batches
from benchmarks.workload import load_texts, write_encoder
from dpr.core import distributed
from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import barrier, current_ranks, gather_rows
from dpr.losses.candidates import find_candidates
from dpr.losses.nll import BiEncoderNllLoss
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import EncoderSettings
from dpr.training import global_batch_gather
from dpr.training.compute import data_parallel
from dpr.training.optimizer import make_optimizer
from dpr.training.settings import OptimizerSettings
from dpr.training.step import DirectStep
from tests.helpers.processes import run_on_ranks

CPU = torch.device("cpu")
WAITING, UPDATE = "waiting for the last process", "update"
COLLECTIVES = ("gather of ids", "gather of vectors", "sum of vectors' gradients", "mean of gradients")


class Finished:
    """The handle of a collective that is over."""

    def wait(self) -> None:
        pass


class Stopwatch:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        return result

    def collective(self, name: str, work: Callable[[], Any]) -> Any:
        """Entered by all processes at once; the time until then is ``WAITING``."""
        self.time(WAITING, barrier)
        return self.time(name, work)


@contextmanager
def timed_collectives(watch: Stopwatch, model: nn.Module) -> Iterator[None]:
    """A block in which every collective of a step is done at once, and timed."""
    names = {"_all_gather_single": COLLECTIVES[1], "_reduce_scatter_single": COLLECTIVES[2]}
    real = {attribute: getattr(distributed, attribute) for attribute in names}

    def timed(attribute: str) -> Callable[..., Finished]:
        def collective(rows: Tensor, source: Tensor, **_: Any) -> Finished:
            name = COLLECTIVES[0] if source.dtype == torch.int64 else names[attribute]
            watch.collective(name, lambda: real[attribute](rows, source))
            return Finished()

        return collective

    def mean(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        gradient = bucket.buffer().div_(current_ranks().world_size)
        watch.collective(COLLECTIVES[3], lambda: dist.all_reduce(gradient))
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(gradient)
        return done

    # It is asked for its types as objects, which annotations of this file are not.
    mean.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}
    if isinstance(model, DistributedDataParallel):
        model.register_comm_hook(None, mean)
    for attribute in names:
        setattr(distributed, attribute, timed(attribute))
    try:
        yield
    finally:
        for attribute, collective in real.items():
            setattr(distributed, attribute, collective)


class Training:
    """This rank's share of the work: ``global_batch`` questions over all ranks, two towers, two passages a
    question."""

    def __init__(self, folder: str, global_batch: int) -> None:
        ranks = current_ranks()
        torch.manual_seed(0)
        model = BiEncoder.from_pretrained(folder, EncoderSettings(sequence_length=256), dropout=0.1).train()
        shares = our_batches(model, load_texts(8 * global_batch), batch=global_batch // ranks.world_size)
        self.batches: Sequence[BiEncoderBatch] = shares[ranks.rank :: ranks.world_size]
        self.model = data_parallel(model, ranks, CPU)
        self._optimizer = make_optimizer(model, OptimizerSettings())
        self._step = DirectStep(self.model, BiEncoderNllLoss(), ranks=ranks, device=CPU)
        self._number = 0
        self.watch = Stopwatch()

    def step(self) -> float:
        """Seconds of one step."""
        batch = self.batches[self._number % len(self.batches)]
        self._number += 1
        barrier()
        start = time.perf_counter()
        self._step(batch, num_batches=1, is_last=True)
        self.watch.time(UPDATE, self._update)
        return time.perf_counter() - start

    def _update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()


def seconds_of_steps(
    folder: str, global_batch: int, steps: int, cores: Sequence[int]
) -> tuple[list[float], dict[str, float]]:
    """Seconds of each step as training does it, and then seconds a step by name when every collective is done
    by itself."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        training = Training(folder, global_batch)
        for _ in range(3):  # buckets are laid out again after the first
            training.step()
        seconds = [training.step() for _ in range(steps)]
        training.watch.seconds.clear()
        with timed_collectives(training.watch, training.model):
            whole = sum(training.step() for _ in range(steps))
    finally:
        os.sched_setaffinity(0, before)
    return seconds, {
        name: value / steps for name, value in (training.watch.seconds | {"whole": whole}).items()
    }


def _gather_at_once(local: Tensor) -> Callable[[], Tensor]:
    rows = gather_rows(local)
    return lambda: rows


def both_ways(folder: str, global_batch: int, rounds: int) -> list[float]:
    """How many times longer a step takes that waits for its gather at once, by round."""
    training, start_gather = Training(folder, global_batch), global_batch_gather.start_gather
    ratios = []
    for number in range(rounds + 2):
        seconds = []
        for blocking in (True, False):
            global_batch_gather.start_gather = _gather_at_once if blocking else start_gather
            seconds.append(sum(training.step() for _ in range(2)))
        if number >= 2:
            ratios.append(seconds[0] / seconds[1])
    return ratios


def seconds_of_candidates(slots: int, questions: int = 128) -> float:
    """Finding the distinct contexts among ``slots``, a tenth of which repeat others, for questions with one
    known positive each."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2**62, (slots, 2), generator=generator)
    repeats = slots // 10
    ids[-repeats:] = ids[:repeats]
    positives, valid = torch.arange(questions), torch.ones(slots, dtype=torch.bool)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        find_candidates(
            "distinct",
            positives,
            valid,
            ids,
            ids[:questions, None],
            torch.ones(questions, 1, dtype=torch.bool),
        )
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--global batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    core = min(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        write_encoder(Path(folder), load_texts(64), layers=arguments.layers, width=arguments.width)
        alone = 0.0
        print(
            "| processes on one core | ms a step | 1 process / these | in collectives | update"
            " |\n|---:|---:|---:|---:|---:|"
        )
        parts = {}
        for world_size in (1, 2, 4):
            steps, parts[world_size] = run_on_ranks(
                seconds_of_steps, world_size, folder, arguments.global_batch, arguments.steps, [core]
            )[0]
            median, own = statistics.median(steps), parts[world_size]
            alone = alone or median
            shares = (
                sum(own.get(name, 0.0) for name in COLLECTIVES) / own["whole"],
                own[UPDATE] / own["whole"],
            )
            print(
                f"| {world_size} | {1e3 * median:.0f} | {alone / median:.2f} | {shares[0]:.1%} |"
                f" {shares[1]:.1%} |",
                flush=True,
            )
        print("\n| ms a step, each by itself | 2 processes | 4 processes |\n|---|---:|---:|")
        for name in (*COLLECTIVES, WAITING, UPDATE, "whole"):
            print(f"| {name} | {1e3 * parts[2][name]:.1f} | {1e3 * parts[4][name]:.1f} |", flush=True)
        ratios = run_on_ranks(both_ways, 2, folder, arguments.global_batch, arguments.steps)[0]
        low, high = min(ratios), max(ratios)
        print(
            f"\nwaiting for the gather at once / beside the work: {statistics.median(ratios):.3f} ({low:.3f}"
            f" to {high:.3f})"
        )
    print("\n| slots of the global batch | finding what counts, ms |\n|---:|---:|")
    for slots in (256, 2048, 16384, 131072):
        print(f"| {slots:,} | {1e3 * seconds_of_candidates(slots):.1f} |", flush=True)


if __name__ == "__main__":
    main()
