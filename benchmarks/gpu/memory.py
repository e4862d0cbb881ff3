"""Memory of a step by batch size, and embedding where the budget of a forward pass does not fit: it is halved
and the job goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from benchmarks import sides
from benchmarks.gpu.record import Record
from benchmarks.gpu.workload import (
    PRECISION,
    Sizes,
    batches_of,
    bert_on,
    is_out_of_memory,
    lengths_of,
    peak_gib,
    start_memory,
    tokens_of,
)
from dpr.embedding.encode import TokenBudget, encode_tokens, encode_within_memory
from dpr.models.biencoder import BiEncoder


def part(record: Record, sizes: Sizes) -> None:
    with bert_on(record, sizes) as model:
        for batch in sizes.memory_batches:
            record.add(f"step of {batch} questions", _step(record, model, batch))
        _halving(record, sizes, model.eval().requires_grad_(False))


def _step(record: Record, model: BiEncoder, batch: int) -> dict[str, Any]:
    batches = batches_of(model, batch, 1)
    start_memory(record.device)
    try:
        sides.our_training(model, batches, record.device, precision=PRECISION)()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        model.zero_grad(set_to_none=True)
        return {"out of memory": True}
    return {"tokens": int(lengths_of(batches).sum()), "GiB": peak_gib(record.device)}


def _halving(record: Record, sizes: Sizes, model: BiEncoder) -> None:
    """All tokens in one forward, with little memory; what comes out must be what the smaller budget gives."""
    tokens = tokens_of(model, sizes.embedded)
    asked = tokens.padded_size
    budget = TokenBudget(asked)
    with _little_memory(model, record.device, sizes):
        found = encode_within_memory(model, tokens, budget, precision=PRECISION)
    expected = encode_tokens(model, tokens, batch_tokens=budget.tokens, precision=PRECISION)
    record.add("tokens of a forward, asked and found", [asked, budget.tokens])
    record.add("vectors are those of the budget found", bool(np.array_equal(found, expected)))
    if budget.tokens >= asked:
        record.add("halving", "not shown: everything fitted")


@contextmanager
def _little_memory(model: BiEncoder, device: torch.device, sizes: Sizes) -> Iterator[None]:
    """Leaves ``headroom_gib`` to the allocator. On a CPU a stand-in refuses large forwards with the error
    that CUDA would raise."""
    if device.type == "cuda":
        start_memory(device)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(
            min(1.0, torch.cuda.memory_reserved(device) / total + sizes.headroom_gib * 2**30 / total)
        )
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        return
    encode = model.encode_batch

    def refuse(*arguments: Any, batch_tokens: int, **others: Any) -> Any:
        if batch_tokens > sizes.forward_tokens:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory (a stand-in)")
        return encode(*arguments, batch_tokens=batch_tokens, **others)

    model.encode_batch = refuse  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del model.encode_batch
