"""Exact search of 3,610 questions: over as many fp16 vectors as fit into the device's memory, and as the
index does it from the host's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.record import Record
from benchmarks.gpu.workload import Sizes, start_memory
from benchmarks.measuring import matrix_peak, synchronize
from tests.helpers.indexes import exact_index

K = 100
BLOCK_ROWS = 1 << 16
FIRST = 1 << 18


def half_of(device: torch.device) -> torch.dtype:
    """fp16, which CPUs multiply a thousand times slower: rehearsals take fp32."""
    return torch.float16 if device.type == "cuda" else torch.float32


def part(record: Record, sizes: Sizes) -> None:
    """The limit of a search is the longer of two: reading every vector once, and the product of all vectors
    with all questions."""
    device = record.device
    torch.manual_seed(0)
    asked = torch.randn(sizes.questions, sizes.dimension, device=device)
    _index(record, sizes, asked)
    start_memory(device)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 34
    spare = 3 * BLOCK_ROWS * sizes.questions * 2  # scores of a block, and copies of them
    count = (
        int(min((free * sizes.share_of_memory - spare) / (2 * sizes.dimension), sizes.resident))
        if device.type == "cuda"
        else 0
    )
    _resident(record, sizes, asked.to(half_of(device)), min(max(count, FIRST), sizes.resident))


def _seconds(work: Callable[[], object], device: torch.device, rounds: int) -> float:
    """The shortest of ``rounds``, after one that does not count."""
    found = []
    for _ in range(rounds + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        found.append(time.perf_counter() - start)
    return min(found[1:])


def _index(record: Record, sizes: Sizes, asked: Tensor) -> None:
    """``indexer=exact``, which reads vectors from the host's memory and scores candidates again in float64
    there."""
    vectors = torch.cat(
        [
            torch.randn(min(FIRST, sizes.streamed - start), sizes.dimension, device=record.device)
            .half()
            .cpu()
            for start in range(0, sizes.streamed, FIRST)
        ]
    )
    index = exact_index([str(row) for row in range(len(vectors))], vectors.numpy(), device=record.device)
    queries = asked.cpu().numpy().astype(np.float32)
    seconds = _seconds(lambda: index.search(queries, K), record.device, 1)
    limits = _limits(record, replace(sizes, resident=len(vectors)), len(vectors), asked)
    copied = _seconds(lambda: vectors.to(record.device), record.device, 2)
    slowest = max(limits["reading once"], limits["product"])
    found = {
        "vectors": len(vectors),
        "seconds": seconds,
        "copying from the host": copied,
        **limits,
        "times the limit": seconds / slowest,
    }
    record.add("indexer=exact, vectors in the host's memory", found)
    record.judge("search", seconds / slowest)


def _limits(record: Record, sizes: Sizes, count: int, asked: Tensor) -> dict[str, float]:
    """Seconds: measured on a piece, for ``count`` vectors."""
    piece = torch.randn(min(count, FIRST * 4), sizes.dimension, device=record.device).to(
        half_of(record.device)
    )
    reading = _seconds(lambda: piece.view(torch.int32).amax(), record.device, 3) * count / len(piece)
    large = {"size": 8192, "repeats": 10} if record.device.type == "cuda" else {}
    peak = matrix_peak(record.device, dtype=half_of(record.device), **large)
    return {"reading once": reading, "product": 2.0 * count * sizes.dimension * len(asked) / peak}


def _resident(record: Record, sizes: Sizes, asked: Tensor, count: int) -> None:
    """A plain search of what fits: products of blocks in fp16, and the best of each block: what an index
    would score again."""
    corpus = torch.empty(count, sizes.dimension, dtype=half_of(record.device), device=record.device)
    for start in range(0, count, FIRST):
        corpus[start : start + FIRST].normal_()

    def search() -> None:
        best = asked.new_full((len(asked), min(K, count)), -torch.inf)
        for start in range(0, count, BLOCK_ROWS):
            scores = asked @ corpus[start : start + BLOCK_ROWS].T
            found = scores.topk(min(K, scores.shape[1]), dim=1).values
            best = torch.cat([best, found], dim=1).topk(best.shape[1], dim=1).values

    seconds = _seconds(search, record.device, 1)
    reading = _seconds(
        lambda: [corpus[at : at + FIRST].view(torch.int32).amax() for at in range(0, count, FIRST)],
        record.device,
        2,
    )
    limits = _limits(record, sizes, min(count, FIRST), asked)
    product = limits["product"] * count / min(count, FIRST)
    found = {
        "vectors": count,
        "GiB": corpus.nbytes / 2**30,
        "seconds": seconds,
        "reading once": reading,
        "product": product,
    }
    found |= {"GB/s read": corpus.nbytes / reading / 1e9, "times the limit": seconds / max(reading, product)}
    record.add("plain blocks, vectors in the device's memory", found)
