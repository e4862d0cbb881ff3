"""Static towers that learn all-MiniLM-L6-v2's vectors (``dpr adapt static=``), on eight collections: the last tables of
benchmarks/results/students.md.

    python -m examples.minilm models/minilm
    python -m benchmarks.minilm_students --data ../shared/data --model models/minilm --out runs/students

Passages are encoded once a collection, and kept in --out, which may be that of benchmarks.adapt_trained.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.adapt_trained import (
    DEPTH,
    METRIC,
    Collection,
    by_vectors,
    by_words,
    collections,
    difference,
    encoded,
)
from benchmarks.students import microseconds
from dpr import BiEncoder
from dpr.adaptation.static_student import MOST_QUESTIONS, learn_static
from dpr.core.records import Passage
from dpr.data.pairs import PseudoPairs
from dpr.evaluation.ranking_metrics import values_of
from dpr.indexer.ranking import Ranking, fuse_linear


def study(name: str, made: Collection, given: argparse.Namespace) -> str:
    """A line of the table."""
    corpus, passages = encoded(name, made, given.model, given.out)
    ids = [str(passage.id) for passage in made.passages]
    rows = {key: row for row, key in enumerate(ids)}
    keys = list(made.questions)
    asked = [made.questions[key] for key in keys]
    words = by_words(asked, made.passages)

    def figures(rankings: list[Ranking]) -> np.ndarray:
        values = values_of(dict(zip(keys, rankings, strict=True)), made.qrels, [METRIC])
        return np.array([values[key][METRIC] for key in keys])

    def systems(questions: Tensor, vectors: Tensor) -> tuple[np.ndarray, np.ndarray]:
        dense = by_vectors(questions, vectors, ids)
        return figures(dense), figures(fuse_linear(dense, words, weight=0.5, k=DEPTH))

    bm25 = figures(words)
    model = BiEncoder(str(given.model))
    start, start_hybrid = systems(torch.from_numpy(model.encode_questions(asked)), passages)

    def known(wanted: list[Passage], **options: Any) -> Tensor:
        return passages[[rows[str(passage.id)] for passage in wanted]]

    found: list[tuple[np.ndarray, ...]] = []
    seconds = []
    for seed in given.seeds:
        model = BiEncoder(str(given.model))
        began = time.process_time()
        with patch.object(model, "encode_passages", known):
            student = learn_static(
                model, PseudoPairs(corpus), sides="both", most_questions=given.questions, seed=seed
            )
        seconds.append(time.process_time() - began)
        if name == "SQuAD":
            student.save(given.out / "student", overwrite=True)
            model.save(given.out / "table", overwrite=True)
        questions = torch.from_numpy(student.encode_questions(asked))
        # the table of static=questions is the same, beside the passages of the model
        beside = systems(questions, passages)
        both = systems(questions, torch.from_numpy(student.encode_passages(made.passages)))
        found.append((*beside, *both))
        shown = " ".join(f"{values.mean():.4f}" for values in found[-1])
        print(f"{name}, seed {seed}: {shown}; {seconds[-1]:.0f} s", flush=True)

    beside_dense, beside_hybrid, both_dense, both_hybrid = (
        np.mean([one[place] for one in found], axis=0) for place in range(4)
    )
    cells = [
        f"{name}, {len(ids):,} passages, {len(keys):,} questions",
        f"{bm25.mean():.3f}",
        f"{start.mean():.3f}",
        f"{beside_dense.mean():.3f}",
        difference(beside_dense, start),
        f"{both_dense.mean():.3f}",
        difference(both_dense, start),
        f"{start_hybrid.mean():.3f}",
        f"{beside_hybrid.mean():.3f}",
        difference(beside_hybrid, start_hybrid),
        f"{both_hybrid.mean():.3f}",
        difference(both_hybrid, bm25),
        f"{np.mean(seconds):.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", help="some of the collections, by name")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--questions", type=int, default=MOST_QUESTIONS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    heads = ["BM25", "model", "static questions", "to the model", "both static", "to the model"]
    heads += ["hybrid, model", "hybrid, static questions", "to the model's", "hybrid, both static", "to BM25"]
    heads += ["CPU s of the fit"]
    print("| | " + " | ".join(heads) + " |\n|---" + "|---:" * len(heads) + "|")
    for name, read in collections(given.data).items():
        if given.sets is None or name in given.sets:
            print(study(name, read(), given), flush=True)
    if (given.out / "student").exists():
        models = {"the model": given.model, "a table": given.out / "table", "static": given.out / "student"}
        print(microseconds(models, [*collections(given.data)["SQuAD"]().questions.values()][:200]))


if __name__ == "__main__":
    main()
