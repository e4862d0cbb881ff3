"""``python -m benchmarks.search``: exact search against faiss's flat index, on the same vectors with the same
number of threads."""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

from benchmarks.page import Ratio, Section
from tests.helpers.indexes import exact_index

CASES = [
    (200_000, 256, 1, 100),
    (200_000, 256, 32, 10),
    (200_000, 256, 512, 100),
    (200_000, 768, 512, 100),
    (100_000, 256, 4096, 100),
]


def compare(passages: int, dimension: int, queries: int, k: int, rounds: int) -> tuple[float, list[float]]:
    """Our seconds, and by round how many times as fast as faiss; checks that both find the same passages."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((passages, dimension), dtype=np.float32)
    asked = rng.standard_normal((queries, dimension), dtype=np.float32)
    exact = exact_index([str(row) for row in range(passages)], vectors)
    flat = faiss.IndexFlatIP(dimension)
    flat.add(vectors)
    seconds: list[float] = []
    ratios: list[float] = []
    for number in range(rounds + 1):
        start = time.perf_counter()
        _, ours = exact.search(asked, k)
        middle = time.perf_counter()
        _, theirs = flat.search(asked, k)
        end = time.perf_counter()
        if number:  # the first round warms both up
            seconds.append(middle - start)
            ratios.append((end - middle) / (middle - start))
    shared = sum(
        len({int(name) for name in row} & set(found.tolist()))
        for row, found in zip(ours, theirs, strict=True)
    )
    assert shared >= 0.999 * queries * k, "the two disagree by more than rounding"
    return statistics.median(seconds), ratios


def section(rounds: int) -> Section:
    """Every case; vectors are in memory on both sides."""
    lines = [
        "| passages | dimensions | questions | best | seconds | faster than faiss flat by |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    found = []
    for passages, dimension, queries, k in CASES:
        seconds, ratios = compare(passages, dimension, queries, k, rounds)
        found.append(Ratio.of(f"faiss flat, {queries:,} questions of {dimension}, best {k}", ratios))
        lines.append(f"| {passages:,} | {dimension} | {queries:,} | {k} | {seconds:.2f} | {found[-1].text} |")
    what = (
        "Exact search (`indexer=exact`) against faiss's flat index (IndexFlatIP), the same random vectors"
        " and number of threads. Ours names candidates by products in float32 and scores each again in"
        " float64. The lengths of the longest vectors are found by the first search and serve the others,"
        " which are measured, as vectors are added to faiss before."
    )
    return Section("Search", "\n\n".join([what, "\n".join(lines)]), tuple(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    print(section(parser.parse_args().rounds).text)


if __name__ == "__main__":
    main()
