"""Indexes by kind: bytes a vector, time to build, questions a second, recall. `python -m benchmarks.indexes
RUN VECTORS QUESTIONS FOLDER`

RUN is a trained run or checkpoint, VECTORS a folder that ``dpr embed`` wrote with it, QUESTIONS JSON lines.
Every kind has its default settings, and its index stays in FOLDER. The number of lists that are searched is
chosen by one half of the questions; all is measured on the other.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

from dpr.formats.question_sets import read_questions
from dpr.formats.vector_shards import open_shards
from dpr.indexer.ranking import SearchResult
from dpr.indexer.registry import DEPTH, Index, IndexChoice, recall_values
from dpr.indexer.saved import IndexStore
from dpr.models.biencoder import BiEncoder

KINDS = ("exact", "flat", "hnsw", "hnsw_sq", "hnsw32", "ivf")
_ROUNDS, _ALONE = 3, 100


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds per question: ``together``, all asked at once (the best of some rounds), and ``alone``, one at
    a time (the median)."""

    together: float
    alone: float

    @property
    def per_second(self) -> float:
        return 1 / self.together


def timed(index: Index, queries: np.ndarray) -> tuple[Timed, SearchResult]:
    """The times of an index, and what it found for all questions (Q, D)."""
    result = index.search(queries, DEPTH)  # reads what the first search reads
    together, alone = [], []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        index.search(queries, DEPTH)
        together.append((time.perf_counter() - start) / len(queries))
    for query in queries[:_ALONE]:
        start = time.perf_counter()
        index.search(query[None], DEPTH)
        alone.append(time.perf_counter() - start)
    return Timed(min(together), median(alone)), result


def main(model_file: str, vectors: str, questions: str, folder: str) -> None:
    model, shards = BiEncoder.load(model_file), open_shards([vectors])
    total = sum(shard.num_vectors for shard in shards)
    queries = model.encode_questions(read(questions))
    choosing, asked = queries[::2], queries[1::2][:500]
    print(
        f"{total:,} vectors of {model.dimension}, {len(asked)} questions, best {DEPTH},"
        f" {torch.get_num_threads()} threads"
    )
    print(
        "| kind | bytes a vector | built in s | questions/s | ms alone | recall@10 | recall@100"
        " |\n|---|---:|---:|---:|---:|---:|---:|"
    )
    truth: list[list[str]] = []
    for kind in KINDS:
        choice, start = IndexChoice.of(kind, {}, key=""), time.perf_counter()
        index = IndexStore(choice, folder=Path(folder, kind)).load_or_build(
            lambda: shards, questions=lambda: choosing
        )
        built = time.perf_counter() - start
        size = sum(
            file.stat().st_size
            for file in Path(folder, kind).glob("*")
            if file.name not in ("ids.npy", "manifest.json")
        )
        taken, (_, found) = timed(index, asked)
        truth = truth or found
        cells = [
            f"{size / total:,.0f}" if size else "",
            f"{built:.1f}" if size else "",
            f"{taken.per_second:,.0f}",
        ]
        cells += [
            f"{1000 * taken.alone:.2f}",
            *(f"{value:.3f}" for value in recall_values(found, truth).values()),
        ]
        print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


def read(file: str) -> list[str]:
    return [question.text for question in read_questions(file)]


if __name__ == "__main__":
    main(*sys.argv[1:])
