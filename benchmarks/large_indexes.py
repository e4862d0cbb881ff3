"""``python -m benchmarks.large_indexes [--rows 1000000] [--kinds exact ivf hnsw32]``:
indexes of many vectors.

For each kind: bytes a vector, time and memory of building, time to open, questions a second, milliseconds for
one alone, recall, and memory of searching. Every phase runs in a process of its own, in one thread; memory is
growth of ``RssAnon`` at its highest, as in ``benchmarks.memory``, so without what is mapped from files.

The vectors (128 numbers, of length 1) are generated: topics of very different sizes, in which the numbers
vary less the later they come, as those of trained encoders do along their axes. A question lies near one
passage. Indexes choose by one half of the questions, and are measured on the other.
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

import numpy as np
import torch

from benchmarks.indexes import timed
from benchmarks.memory import Watch
from dpr.formats.vector_shards import VectorShardWriter, open_shards
from dpr.indexer.exact import ExactIndex
from dpr.indexer.registry import DEPTH, Index, IndexChoice, recall_values
from dpr.indexer.saved import IndexStore

KINDS = ("exact", "ivf", "hnsw32")
DIMENSION, TOPICS, CHUNK, QUESTIONS = 128, 20_000, 65536, 200
SPECTRUM = np.arange(1, DIMENSION + 1) ** -0.4


def write(folder: Path, rows: int, kind: str) -> dict[str, float]:
    """A shard of vectors, and the questions: each near one of them."""
    topics = np.random.default_rng(0).standard_normal((TOPICS, DIMENSION)) * SPECTRUM
    shares = 1 / np.arange(1, TOPICS + 1) ** 0.7
    writer = VectorShardWriter(
        folder / "vectors_0", metadata={"model_fingerprint": "generated"}, dimension=DIMENSION
    )
    near = []
    for number, first in enumerate(range(0, rows, CHUNK)):
        rng, count = np.random.default_rng([1, number]), min(CHUNK, rows - first)
        of = rng.choice(TOPICS, count, p=shares / shares.sum())
        vectors = unit(topics[of] + 0.7 * SPECTRUM * rng.standard_normal((count, DIMENSION)))
        writer.write_chunk(number, [f"doc-{row}" for row in range(first, first + count)], vectors)
        near.append(vectors[rng.integers(count, size=-(-2 * QUESTIONS * count // rows))])
    writer.finish()
    asked = np.concatenate(near)[np.random.default_rng(2).permutation(sum(map(len, near)))[: 2 * QUESTIONS]]
    noise = SPECTRUM * np.random.default_rng(3).standard_normal(asked.shape)
    np.save(folder / "questions.npy", unit(asked + 0.6 * np.linalg.norm(SPECTRUM) ** -1 * noise))
    return {}


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def opened(folder: Path, kind: str) -> Index:
    choosing = np.load(folder / "questions.npy")[::2]
    shards = open_shards([folder / "vectors_0"])
    return IndexStore(IndexChoice.of(kind, {}, key=""), folder=folder / kind).load_or_build(
        lambda: shards, questions=lambda: choosing
    )


def build(folder: Path, rows: int, kind: str) -> dict[str, float]:
    with Watch() as watch:
        started = time.perf_counter()
        opened(folder, kind)
        seconds = time.perf_counter() - started
    size = sum(
        file.stat().st_size
        for file in (folder / kind).iterdir()
        if file.name not in ("ids.npy", "manifest.json")
    )
    return {"bytes": size / rows, "built_s": seconds, "built_mb": watch.growth / 2**20}


def search(folder: Path, rows: int, kind: str) -> dict[str, float]:
    asked = np.load(folder / "questions.npy")[1::2]
    with Watch() as watch:
        started = time.perf_counter()
        index = opened(folder, kind)
        seconds = time.perf_counter() - started
        taken, (_, found) = timed(index, asked)
    if isinstance(index, ExactIndex):
        (folder / "truth.json").write_text(json.dumps(found))
    truth = json.loads((folder / "truth.json").read_text())
    figures = {
        "open_s": seconds,
        "questions_per_s": taken.per_second,
        "ms_alone": 1000 * taken.alone,
        "search_mb": watch.growth / 2**20,
    }
    return figures | recall_values(found, truth)


PHASES = {made.__name__: made for made in (write, build, search)}
COLUMNS = {
    "bytes": ".0f",
    "built_s": ".0f",
    "built_mb": ".0f",
    "open_s": ".1f",
    "questions_per_s": ",.0f",
    "ms_alone": ".2f",
}
COLUMNS |= {"search_mb": ".0f", "recall@10": ".3f", f"recall@{DEPTH}": ".3f"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where a temporary folder is made (default: the system's)"
    )
    parser.add_argument("--phase", nargs=2, default=None, help="used by the benchmark itself")
    arguments = parser.parse_args()
    if arguments.phase is not None:
        phase, kind = arguments.phase
        torch.set_num_threads(1)
        print(json.dumps(PHASES[phase](arguments.folder, arguments.rows, kind)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:

        def run(phase: str, kind: str) -> dict[str, float]:
            command = [
                sys.executable,
                "-m",
                "benchmarks.large_indexes",
                f"--rows={arguments.rows}",
            ]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "DPR_CACHE": f"{temporary}/cache"}
            done = subprocess.run(
                [*command, f"--folder={temporary}", "--phase", phase, kind],
                stdout=-1,
                check=True,
                env=environment,
            )
            return dict(json.loads(done.stdout.decode().splitlines()[-1]))

        run("write", "")
        print(
            f"{arguments.rows:,} vectors of {DIMENSION} numbers, {QUESTIONS} questions, best {DEPTH}, one"
            " thread"
        )
        print("| kind | " + " | ".join(COLUMNS) + " |\n|---|" + "---:|" * len(COLUMNS), flush=True)
        for kind in (
            "exact",
            *(kind for kind in arguments.kinds if kind != "exact"),
        ):  # it is the truth of the others
            figures = ({} if kind == "exact" else run("build", kind)) | run("search", kind)
            cells = (format(figures[name], form) if name in figures else "" for name, form in COLUMNS.items())
            print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
