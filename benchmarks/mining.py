"""``python -m benchmarks.mining [--out FILE]``: dense mining against sentence-transformers', on the same
vectors.

Texts and vectors are made here. Every measurement runs in a process of its own, which imports everything
first; the sides take turns, and the ratios are those of neighbours in time. Encoding is no part of it: ours
finds the vectors on disk, theirs gets them from a model that reads them from there.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.memory import MEBI, Watch
from dpr.core.records import Passage, TrainingSample
from dpr.data import near_duplicates
from dpr.formats.corpora import read_passages, write_passages
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from dpr.formats.vector_shards import VectorShard, VectorShardWriter
from dpr.mining.blocks import run_job
from dpr.mining.negatives import Mining
from dpr.mining.search import DenseSearch, MiningCorpus
from dpr.mining.settings import MiningSettings
from dpr.storage.durable import write_json
from dpr.storage.untrusted import read_json

OURS = "dpr mine"
OURS_WITHOUT = "dpr mine, without the check for near-duplicates"
THEIRS = f"sentence-transformers {version('sentence-transformers')}"
SHARE, PER_QUESTION, DEPTH = 0.95, 5, 100
INTRODUCTION = """# The cost of dense mining

`python -m benchmarks.mining` makes this page: the same vectors, the same questions, everything but encoding. The sides
take turns; ratios are medians over the rounds, of a measurement and its neighbour in time. Time begins after the imports and ends when the
negatives are written (ours) or in a `Dataset` (theirs).

Both sides leave out what scores above the stated share of the positive's score, and the positive itself. `dpr mine` also leaves out
other known positives by id and by text and passages that hold an answer (there are none here) and, but for the second row,
near-duplicates of positives and of other negatives; theirs has no such filters. Ours stores the corpus on disk, to look texts up there;
theirs holds all texts in memory before the time begins. Memory is the growth of anonymous resident memory (`RssAnon`) after the imports,
all processes together."""


class GivenVectors(DenseSearch):
    """A search by vectors that were not made by a model."""

    mined_by = "dense"

    def metadata(self) -> dict[str, Any]:
        return {"kind": "given"}

    def prepare(self, corpus: MiningCorpus) -> None:
        self.use_vectors(self.shards)

    def encoded_questions(self, questions: Sequence[str]) -> np.ndarray:
        vectors = np.load(self.shards[0].path.with_name("questions.npy"), mmap_mode="r")
        return np.array(vectors[[int(question.split()[1]) for question in questions]])


def prepare(folder: Path, num_questions: int, num_passages: int, dimension: int) -> None:
    """Passages of 60 words; vectors in 500 clusters, a question's near its passage's."""
    rng, generator = random.Random(0), np.random.default_rng(0)
    words = [f"word{number}" for number in range(20_000)]
    weights = [1 / (number + 10) for number in range(len(words))]
    passages = [
        Passage(" ".join(rng.choices(words, weights, k=60)), "", f"p{number}")
        for number in range(num_passages)
    ]
    write_passages(folder / "corpus.tsv", passages)
    golds = generator.choice(num_passages, num_questions, replace=False)
    samples = (
        TrainingSample(f"question {number}", (passages[gold],)) for number, gold in enumerate(golds.tolist())
    )
    write_training_set(folder / "train.jsonl", samples)
    centers = generator.standard_normal((500, dimension), dtype=np.float32)
    vectors = centers[generator.integers(500, size=num_passages)] + generator.standard_normal(
        (num_passages, dimension), dtype=np.float32
    )
    questions = vectors[golds] + generator.standard_normal((num_questions, dimension), dtype=np.float32)
    vectors, questions = (
        array / np.linalg.norm(array, axis=1, keepdims=True) for array in (vectors, questions)
    )
    np.save(folder / "questions.npy", questions)
    np.save(folder / "passages.npy", vectors)
    writer = VectorShardWriter(folder / "vectors", metadata={"similarity": "dot"}, dimension=dimension)
    for number, start in enumerate(range(0, num_passages, 8192)):
        rows = range(start, min(start + 8192, num_passages))
        writer.write_chunk(number, [f"p{row}" for row in rows], vectors[rows.start : rows.stop])
    writer.finish()
    open_training_set(folder / "train.jsonl", name="train")  # parsed once, as a data set for both sides


def ours(folder: Path) -> list[list[str]]:
    """The whole of ``dpr mine`` but for the model: the corpus is stored to be looked into, the output is
    written."""
    train = open_training_set(folder / "train.jsonl", name="train")
    settings = MiningSettings(per_question=PER_QUESTION, to_rank=DEPTH, max_relative_score=SHARE)
    model: Any = None
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        out = Path(temporary) / "out.jsonl"
        search = GivenVectors(model, [VectorShard(folder / "vectors")])
        run_job(Mining(train, out, [search], folder / "corpus.tsv", settings=settings))
        with open(out, encoding="utf-8") as lines:
            return [
                [entry["passage_id"] for entry in json.loads(line)["hard_negative_ctxs"]] for line in lines
            ]


def theirs(folder: Path) -> Callable[[], list[list[str]]]:
    """Their data set and texts are in memory before the time begins, as a user's would be."""
    from datasets import Dataset
    from sentence_transformers.util import dot_score, mine_hard_negatives, pairwise_dot_score

    train = open_training_set(folder / "train.jsonl", name="train")
    samples = [train[row] for row in range(len(train))]
    texts = {passage.text: str(passage.id) for passage in read_passages(folder / "corpus.tsv")}
    rows = {text: row for row, text in enumerate(texts)}
    data = Dataset.from_dict(
        {"question": [s.question for s in samples], "passage": [s.positives[0].text for s in samples]}
    )

    def encode_document(passages: list[str], **_: Any) -> np.ndarray:
        return np.load(folder / "passages.npy")[[rows[text] for text in passages]]

    def encode_query(questions: list[str], **_: Any) -> np.ndarray:
        return np.load(folder / "questions.npy")[[int(question.split()[1]) for question in questions]]

    model: Any = SimpleNamespace(
        device=torch.device("cpu"),
        encode_document=encode_document,
        encode_query=encode_query,
        similarity=dot_score,
        similarity_pairwise=pairwise_dot_score,
    )

    def work() -> list[list[str]]:
        mined = mine_hard_negatives(
            data,
            model,
            corpus=list(texts),
            range_max=DEPTH,
            num_negatives=PER_QUESTION,
            relative_margin=1 - SHARE,
            sampling_strategy="top",
            output_format="triplet",
            verbose=False,
        )
        found: list[list[str]] = [[] for _ in samples]
        for question, negative in zip(mined["question"], mined["negative"], strict=True):
            found[int(question.split()[1])].append(texts[negative])
        return found

    return work


def measure(side: str, folder: Path) -> dict[str, Any]:
    """Seconds, growth in bytes, and the ids found."""
    work = theirs(folder) if side == THEIRS else lambda: ours(folder)
    if side == OURS_WITHOUT:
        near_duplicates.NEAR_DUPLICATE = 2.0  # which no share of words reaches

    with Watch(every_s=0.01, children=True) as watch:
        start = time.perf_counter()
        found = work()
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "growth": watch.growth, "found": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=20_000)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="write the page to this Markdown file")
    parser.add_argument("--side", default=None, help="used by the benchmark itself")
    parser.add_argument("--folder", type=Path, default=None, help="used by the benchmark itself")
    arguments = parser.parse_args()
    if arguments.side is not None:
        write_json(arguments.folder / "measured.json", measure(arguments.side, arguments.folder))
        return
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["DPR_CACHE"] = f"{temporary}/cache"
        folder = Path(temporary)
        prepare(folder, arguments.questions, arguments.passages, arguments.dimension)
        rounds = [
            {side: in_own_process(side, folder) for side in (OURS, THEIRS, OURS_WITHOUT)}
            for _ in range(arguments.rounds)
        ]
    page = "\n\n".join([INTRODUCTION, _heading(arguments), _table(rounds), _agreement(rounds[0])])
    print(page)
    if arguments.out is not None:
        arguments.out.write_text(page + "\n", encoding="utf-8")


def in_own_process(side: str, folder: Path) -> dict[str, Any]:
    subprocess.run(
        [sys.executable, "-m", "benchmarks.mining", f"--side={side}", f"--folder={folder}"], check=True
    )
    measured: dict[str, Any] = read_json(folder / "measured.json")
    print(f"{side}: {measured['seconds']:.1f} s, {measured['growth'] / MEBI:.0f} MB", file=sys.stderr)
    return measured


def _heading(arguments: argparse.Namespace) -> str:
    return (
        f"{arguments.questions:,} questions, {arguments.passages:,} passages of 60 words, vectors of"
        f" {arguments.dimension} dimensions, {DEPTH} candidates, {PER_QUESTION} negatives below {SHARE:.0%}"
        f" of the positive's score. {platform.machine()} CPU, {torch.get_num_threads()} threads, torch"
        f" {torch.__version__}, numpy {np.__version__}, {arguments.rounds} rounds, {datetime.date.today()}."
    )


def _table(rounds: Sequence[dict[str, dict[str, Any]]]) -> str:
    lines = ["| | time, s | theirs / this | memory, MB | theirs / this |", "|---|---:|---:|---:|---:|"]
    for side in rounds[0]:
        seconds, growth = ([one[side][key] for one in rounds] for key in ("seconds", "growth"))
        faster, smaller = (
            statistics.median(one[THEIRS][key] / one[side][key] for one in rounds)
            for key in ("seconds", "growth")
        )
        memory = statistics.median(growth) / MEBI
        lines.append(
            f"| {side} | {statistics.median(seconds):.1f} | {faster:.2f} | {memory:,.0f} | {smaller:.1f} |"
        )
    return "\n".join(lines)


def _agreement(measured: dict[str, dict[str, Any]]) -> str:
    ours_found, theirs_found = measured[OURS]["found"], measured[THEIRS]["found"]
    same = sum(mine == other for mine, other in zip(ours_found, theirs_found, strict=True))
    total = sum(map(len, ours_found))
    return (
        f"Of {len(ours_found):,} questions {same:,} get the same negatives in the same order from both"
        f" ({total:,} negatives by ours)."
    )


if __name__ == "__main__":
    main()
