"""``python -m benchmarks.many_passages [--rows 20000000]``: a corpus of very many short passages, from its
first opening to a search.

Every phase runs in a process of its own. Growth is of ``RssAnon`` after the imports, at its highest, as in
``benchmarks.memory``. Vectors of the search are random numbers; a shard of the corpus is embedded by a small
model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.memory import Watch
from benchmarks.memory_cases import write_model
from dpr.embedding import job
from dpr.embedding.encode import CorpusTokens, TokenChunk
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.vector_shards import Metadata, VectorShardWriter, open_shards
from dpr.indexer.exact import ExactIndex
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.passages import PassageLookup
from dpr.retrieval.settings import IndexerConfig
from dpr.retrieval.sides import index_choice, open_text_index

SHARDS, CHUNK, DIMENSION, QUESTIONS, HITS = 20, 65536, 32, 16, 100
EMBEDDED = 20_000  # passages of the shard that is embedded
MOST_WORDS = 2_000_000  # passages of an index of words: it is built in memory


def write(folder: Path, rows: int) -> dict[str, float]:
    """Passages of some 55 bytes, and a model."""
    started = time.perf_counter()
    with open(folder / "corpus.tsv", "w", encoding="ascii") as out:
        out.write("id\ttext\ttitle\n")
        for row in range(rows):
            out.write(f"doc-{row}\tword{row % 1999} word{row % 997} word{row % 491}\tword{row % 100}\n")
    write_model(folder / "encoder", folder / "model", width=32)
    return {"seconds": time.perf_counter() - started, "bytes": (folder / "corpus.tsv").stat().st_size}


def first_opening(folder: Path, rows: int) -> dict[str, float]:
    """Counts the passages, proves their ids unique, and makes the store."""
    with Watch() as watch:
        started = time.perf_counter()
        lookup = PassageLookup([PassageSource(folder / "corpus.tsv")], in_memory_bytes=0)
        seconds = time.perf_counter() - started
        assert lookup.get([f"doc-{rows - 1}"])
    return {"seconds": seconds, "growth_mb": watch.growth / 2**20, "bytes": _size(folder / "cache")}


def embed(folder: Path, rows: int) -> dict[str, float]:
    """The last shard: the time until its first passage is found, and until it is embedded."""
    model, source = BiEncoder.load(folder / "model"), PassageSource(folder / "corpus.tsv")
    num_shards = rows // EMBEDDED
    config = EmbedConfig(
        out_file=str(folder / "embedded"), num_shards=num_shards, shard_id=num_shards - 1, batch_tokens=4096
    )
    real, found = CorpusTokens.read, []

    def noted(corpus: CorpusTokens, numbers: Sequence[int]) -> Iterator[TokenChunk]:
        first = corpus.rows_of(0).start
        assert next(corpus.source.read(first)).id == f"doc-{first}"
        found.append(time.perf_counter())
        return real(corpus, numbers)

    CorpusTokens.read = noted  # type: ignore[method-assign, assignment]
    with Watch() as watch:
        started = time.perf_counter()
        report = job.embed_shard(model, source, config)
        seconds = time.perf_counter() - started
    assert report.embedded == EMBEDDED
    return {"start_s": found[0] - started, "seconds": seconds, "growth_mb": watch.growth / 2**20}


def look_up(folder: Path, rows: int) -> dict[str, float]:
    """A later opening, then the texts of hits spread over the corpus."""
    rng = np.random.default_rng(0)
    with Watch() as watch:
        started = time.perf_counter()
        lookup = PassageLookup([PassageSource(folder / "corpus.tsv")], in_memory_bytes=0)
        opened = time.perf_counter() - started
        started = time.perf_counter()
        for _ in range(QUESTIONS):
            ids = {f"doc-{row}" for row in rng.integers(0, rows, HITS)}
            assert lookup.get(ids).keys() == ids
        seconds = (time.perf_counter() - started) / QUESTIONS
    return {"open_s": opened, "milliseconds_per_100": 1000 * seconds, "growth_mb": watch.growth / 2**20}


def words(folder: Path, rows: int) -> dict[str, float]:
    """Builds and saves an index of the words."""
    with Watch() as watch:
        started = time.perf_counter()
        open_text_index(
            index_choice(IndexerConfig(kind="bm25")),
            [PassageSource(folder / "corpus.tsv")],
            str(folder / "words"),
        )
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "growth_mb": watch.growth / 2**20, "bytes": _size(folder / "words")}


def search_words(folder: Path, rows: int) -> dict[str, float]:
    """Opens that index again, which hashes it, and searches it."""
    rng = np.random.default_rng(0)
    with Watch() as watch:
        started = time.perf_counter()
        index = open_text_index(
            index_choice(IndexerConfig(kind="bm25")),
            [PassageSource(folder / "corpus.tsv")],
            str(folder / "words"),
        )
        opened, started = time.perf_counter() - started, time.perf_counter()
        _, found = index.search([f"word{a} word{b}" for a, b in rng.integers(0, 491, (QUESTIONS, 2))], HITS)
    assert index.num_passages == rows and {len(ids) for ids in found} == {HITS}
    return {"open_s": opened, "search_s": time.perf_counter() - started, "growth_mb": watch.growth / 2**20}


def vectors(folder: Path, rows: int) -> dict[str, float]:
    """Shards as embedding writes them."""
    rng, size = np.random.default_rng(0), rows // SHARDS
    started = time.perf_counter()
    for shard in range(SHARDS):
        metadata: Metadata = {"corpus_fingerprint": "c", "shard_id": shard, "num_shards": SHARDS}
        metadata |= {"first_row": shard * size, "end_row": (shard + 1) * size}
        writer = VectorShardWriter(
            folder / f"vectors_{shard}", metadata=metadata, dimension=DIMENSION, dtype="float16"
        )
        for number, first in enumerate(range(0, size, CHUNK)):
            count = min(CHUNK, size - first)
            ids = [f"doc-{shard * size + first + row}" for row in range(count)]
            writer.write_chunk(number, ids, rng.standard_normal((count, DIMENSION), dtype=np.float32))
        writer.finish()
    return {
        "seconds": time.perf_counter() - started,
        "bytes": sum(_size(folder / f"vectors_{shard}") for shard in range(SHARDS)),
    }


def search(folder: Path, rows: int) -> dict[str, float]:
    """Opens the shards for the first time, which verifies them, and again; then searches them."""
    queries = np.random.default_rng(1).standard_normal((QUESTIONS, DIMENSION), dtype=np.float32)
    seconds = []
    with Watch() as watch:
        for _ in range(2):
            started = time.perf_counter()
            index = ExactIndex(open_shards([folder / "vectors_*"]))
            seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
        assert len(index.search(queries, HITS)[1][0]) == HITS
        assert index.num_passages == rows
    found = {"first_open_s": seconds[0], "open_s": seconds[1], "search_s": time.perf_counter() - started}
    return found | {"growth_mb": watch.growth / 2**20}


PHASES = {
    made.__name__: made
    for made in (write, first_opening, embed, look_up, words, search_words, vectors, search)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where a temporary folder is made (default: the system's)"
    )
    parser.add_argument("--phase", choices=list(PHASES), default=None, help="used by the benchmark itself")
    arguments = parser.parse_args()
    if arguments.phase is not None:
        print(json.dumps(PHASES[arguments.phase](arguments.folder, arguments.rows)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        for phase, made in PHASES.items():
            if made in (words, search_words) and arguments.rows > MOST_WORDS:
                continue
            command = [sys.executable, "-m", "benchmarks.many_passages", f"--rows={arguments.rows}"]
            command += [f"--folder={temporary}", f"--phase={phase}"]
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                check=True,
                env={**os.environ, "DPR_CACHE": f"{temporary}/cache"},
            )
            print(f"{phase}: {done.stdout.decode().splitlines()[-1]}", flush=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
