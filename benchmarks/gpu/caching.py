"""Gradient caching on a GPU: what a step costs beside a direct one, and the largest batch of each."""

from __future__ import annotations

import time

from benchmarks import sides
from benchmarks.gpu.record import Record
from benchmarks.gpu.workload import (
    DTYPE,
    PRECISION,
    Sizes,
    batches_of,
    bert_on,
    is_out_of_memory,
    lengths_of,
    peak_gib,
    start_memory,
)
from benchmarks.measuring import synchronize, take_turns
from dpr.models.biencoder import BiEncoder
from dpr.training.throughput import TowerCost

MOST_SECONDS = 150
"""After them, no larger batch is tried."""


def part(record: Record, sizes: Sizes) -> None:
    with bert_on(record, sizes) as model:
        _cost(record, sizes, model)
        for name, budget in (("cached", sizes.cache_tokens), ("direct", 0)):
            record.add(f"largest batch, {name}", _largest(record, sizes, model, budget))


def _cost(record: Record, sizes: Sizes, model: BiEncoder) -> None:
    """With a third of the batch's tokens as budget, so that most of it is encoded twice."""
    batches = batches_of(model, sizes.compared_batch, 1)
    lengths = lengths_of(batches)
    budget = max(int(lengths.sum()) // 3, 1)
    work = {
        "direct": sides.our_training(model, batches, record.device, precision=PRECISION),
        "cached": sides.our_training(
            model, batches, record.device, precision=PRECISION, grad_cache_tokens=budget
        ),
    }
    figures = take_turns(
        work,
        units=sizes.compared_batch,
        flops=TowerCost(model.ctx_model).of(lengths),
        rounds=sizes.rounds,
        device=record.device,
        warmups=sizes.warmups,
        dtype=DTYPE,
    )
    cost = figures["direct"].rate / figures["cached"].rate
    rates = {name: side.rate for name, side in figures.items()}
    record.add(
        "cost",
        {"questions": sizes.compared_batch, "grad_cache_tokens": budget, "questions/s": rates, "ratio": cost},
    )
    record.judge("caching", cost)


def _largest(record: Record, sizes: Sizes, model: BiEncoder, budget: int) -> list[dict[str, float]]:
    """Batches doubled until one does not fit, the largest of the sizes is reached, or time is up."""
    found: list[dict[str, float]] = []
    batch, start = min(sizes.compared_batch, sizes.most_batch), time.perf_counter()
    while batch <= sizes.most_batch and time.perf_counter() - start < MOST_SECONDS:
        measured = _step(record, model, batch, budget)
        found.append(measured)
        record.add(f"batches so far, {'cached' if budget else 'direct'}", found)
        if "out of memory" in measured:
            break
        batch *= 2
    return found


def _step(record: Record, model: BiEncoder, batch: int, budget: int) -> dict[str, float]:
    batches = batches_of(model, batch, 1)
    start_memory(record.device)
    seconds = -1.0
    try:
        work = sides.our_training(
            model, batches, record.device, precision=PRECISION, grad_cache_tokens=budget
        )
        for _ in range(2):  # the second is timed
            start = time.perf_counter()
            work()
            synchronize(record.device)
            seconds = time.perf_counter() - start
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    model.zero_grad(set_to_none=True)
    done = (
        {"questions/s": batch / seconds, "GiB": peak_gib(record.device)}
        if seconds > 0
        else {"out of memory": 1}
    )
    return {"questions": batch, "tokens": int(lengths_of(batches).sum()), **done}
