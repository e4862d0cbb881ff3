"""What ``dpr adapt corpus model=FOLDER`` does to a model that is good already, on eight collections:
benchmarks/results/adapt_trained.md.

    python -m examples.minilm models/minilm
    python -m benchmarks.adapt_trained --data ../shared/data --model models/minilm --out runs/adapt_trained

The fit is the product's own. Passages are encoded once a collection; the layer is then multiplied to their vectors, which
gives what the model with the layer gives. At most 2,500 questions of a collection are asked, and 4,000 pairs of MedQuAD.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.study_table import interval
from dpr import BiEncoder
from dpr.adaptation.linear_layer import add_fitted_layer
from dpr.core.records import Passage
from dpr.data.pairs import PseudoPairs
from dpr.evaluation.ranking_metrics import values_of
from dpr.formats.corpora import read_passages, write_passages
from dpr.formats.question_sets import read_qrels
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.ranking import Ranking, fuse_linear, to_rankings
from dpr.indexer.registry import IndexTexts

METRIC = "ndcg@10"
MOST_QUESTIONS = 2500
MOST_PAIRS = 4000
DEPTH = 1000


@dataclass
class Collection:
    """Passages; questions and judgements by question id."""

    passages: list[Passage] = field(default_factory=list)
    questions: dict[str, str] = field(default_factory=dict)
    qrels: dict[str, dict[str, int]] = field(default_factory=dict)

    def ask(self, question: str, key: str, passage: Passage, ids: dict[Any, str]) -> None:
        """Adds a pair; a passage that is there is not added again. ``ids`` are those of the passages so far."""
        content = passage.title, passage.text
        if content not in ids:
            ids[content] = str(len(ids))
            self.passages.append(Passage(passage.text, passage.title, ids[content]))
        self.questions[key] = question
        self.qrels.setdefault(key, {})[ids[content]] = 1

    def sampled(self, most: int) -> Collection:
        keys = list(self.questions)
        random.Random(0).shuffle(keys)
        kept = keys[:most]
        questions = {key: self.questions[key] for key in kept}
        return Collection(self.passages, questions, {key: self.qrels[key] for key in kept})


def rows_of(file: Path) -> Iterator[dict[str, Any]]:
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def beir(folder: Path) -> Collection:
    corpus = next(folder.glob("corpus.jsonl*"))
    judged = read_qrels(next(iter(sorted((folder / "qrels").glob("test*")))))
    texts = {str(row["_id"]): row["text"] for row in rows_of(folder / "queries.jsonl")}
    qrels = {
        key: {name: grade for name, grade in grades.items() if grade > 0} for key, grades in judged.items()
    }
    asked = {key: texts[key] for key, grades in qrels.items() if grades}
    passages = [passage for passage in read_passages(corpus) if f"{passage.title}{passage.text}".strip()]
    return Collection(passages, asked, {key: qrels[key] for key in asked})


def whole_squad(file: Path) -> Collection:
    """All questions of a file in SQuAD's layout."""
    made = Collection()
    ids: dict[Any, str] = {}
    (content,) = rows_of(file)
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                made.ask(asked["question"], asked["id"], Passage(paragraph["context"]), ids)
    return made


def squad(file: Path) -> Collection:
    return whole_squad(file).sampled(MOST_QUESTIONS)


def qed(file: Path) -> Collection:
    made = Collection()
    ids: dict[Any, str] = {}
    for row in rows_of(file):
        passage = Passage(row["paragraph_text"], row["title_text"])
        made.ask(row["question_text"], str(row["example_id"]), passage, ids)
    return made


def medquad(file: Path) -> Collection:
    made = Collection()
    ids: dict[Any, str] = {}
    rows = list(rows_of(file))
    random.Random(0).shuffle(rows)
    for row in rows[:MOST_PAIRS]:
        made.ask(row["question"], row["question"], Passage(row["answer"]), ids)
    return made.sampled(MOST_QUESTIONS)


def collections(data: Path) -> dict[str, Any]:
    """Readers by name."""
    shifts = data / "squadshifts"
    return {
        "Cranfield": lambda: beir(data / "cranfield"),
        "NPL": lambda: beir(data / "npl"),
        "SQuAD": lambda: squad(data / "squad" / "squad-v1.1-dev.shared-half.json.gz"),
        "QED": lambda: qed(data / "qed" / "qed-dev.jsonl.gz"),
        "SQuADShifts New Wikipedia": lambda: squad(shifts / "new_wiki_v1.0.json.gz"),
        "SQuADShifts Amazon": lambda: squad(shifts / "amazon_reviews_v1.0.json.gz"),
        "SciFact": lambda: beir(data / "scifact"),
        "MedQuAD": lambda: medquad(data / "medquad" / "medquad.jsonl.gz"),
    }


def by_vectors(questions: Tensor, passages: Tensor, ids: list[str]) -> list[Ranking]:
    best = (questions @ passages.T).topk(min(DEPTH, len(ids)))
    return [
        [(ids[row], score) for row, score in zip(rows, scores, strict=True)]
        for rows, scores in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def by_words(questions: list[str], passages: list[Passage]) -> list[Ranking]:
    """The passages that BM25 finds."""
    ids = (str(passage.id) for passage in passages)
    texts = (f"{passage.title} {passage.text}" for passage in passages)
    return to_rankings(Bm25Index.build(IndexTexts(ids, texts)).search(questions, DEPTH))


def encoded(name: str, made: Collection, model_folder: Path, out: Path) -> tuple[Path, Tensor]:
    """The corpus as a file, and its vectors."""
    corpus = out / f"{name.replace(' ', '-')}.jsonl"
    if not corpus.exists():
        write_passages(corpus, made.passages)
    stored = corpus.with_suffix(".npy")
    if not stored.exists():
        vectors = BiEncoder(str(model_folder)).encode_passages(made.passages, show_progress_bar=True)
        np.save(stored, vectors)
    return corpus, torch.from_numpy(np.load(stored))


def study(name: str, made: Collection, model_folder: Path, out: Path, seeds: int) -> str:
    """A line of the table."""
    corpus, passages = encoded(name, made, model_folder, out)
    ids = [str(passage.id) for passage in made.passages]
    rows = {key: row for row, key in enumerate(ids)}
    keys = list(made.questions)
    asked = [made.questions[key] for key in keys]
    words = by_words(asked, made.passages)

    def figures(rankings: list[Ranking]) -> np.ndarray:
        run = dict(zip(keys, rankings, strict=True))
        values = values_of(run, made.qrels, [METRIC])
        return np.array([values[key][METRIC] for key in keys])

    def systems(questions: Tensor, vectors: Tensor) -> dict[str, np.ndarray]:
        dense = by_vectors(questions, vectors, ids)
        return {
            "dense": figures(dense),
            "hybrid": figures(fuse_linear(dense, words, weight=0.5, k=DEPTH)),
        }

    bm25 = figures(words)
    questions = torch.from_numpy(BiEncoder(str(model_folder)).encode_questions(asked))
    start = systems(questions, passages)
    adapted: list[dict[str, np.ndarray]] = []
    seconds = []
    for seed in range(seeds):
        model = BiEncoder(str(model_folder))

        def known(given: list[Passage], **options: Any) -> Tensor:
            return passages[[rows[str(passage.id)] for passage in given]]

        pairs = PseudoPairs(corpus, kinds=["sentence", "title"], drop_words=0.0)
        began = time.process_time()
        with patch.object(model, "encode_passages", known):
            add_fitted_layer(model, pairs, seed=seed)
        seconds.append(time.process_time() - began)
        assert model.ctx_model.encode_proj is not None
        matrix = model.ctx_model.encode_proj.weight.detach()
        after = systems(normalize(questions @ matrix.T, dim=-1), normalize(passages @ matrix.T, dim=-1))
        adapted.append(after)
        shown = ", ".join(f"{system} {values.mean():.4f}" for system, values in after.items())
        print(f"{name}, seed {seed}: {shown}; {seconds[-1]:.0f} s", flush=True)

    means = {system: np.mean([one[system] for one in adapted], axis=0) for system in start}
    by_seed = " ".join(f"{one['dense'].mean():.3f}" for one in adapted)
    cells = [
        f"{name}, {len(ids):,} passages, {len(keys):,} questions",
        f"{bm25.mean():.3f}",
        f"{start['dense'].mean():.3f}",
        f"{means['dense'].mean():.3f}",
        by_seed,
        difference(means["dense"], start["dense"]),
        f"{start['hybrid'].mean():.3f}",
        f"{means['hybrid'].mean():.3f}",
        difference(means["hybrid"], start["hybrid"]),
        difference(means["hybrid"], bm25),
        f"{np.mean(seconds):.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def foretold(name: str, made: Collection, model_folder: Path, out: Path) -> str:
    """A line of what pseudo-questions of passages that the fit did not ask say about it, and real questions.

    Of the questions cut from a fifth of the passages: nDCG@10 of the passage that each was cut from, and the share of the
    hybrid's ten best other passages among the ten best by vectors.
    """
    corpus, passages = encoded(name, made, model_folder, out)
    ids = [str(passage.id) for passage in made.passages]
    rows = {key: row for row, key in enumerate(ids)}
    held = PseudoPairs(corpus, kinds=["sentence", "title"], drop_words=0.0, held_back=0.2, held_only=True)
    asked = range(min(len(held), 500))
    cut = [held.row(held.corpus_row(row)).passage for row in asked]
    cut_questions = [held[row].question for row in asked]
    model = BiEncoder(str(model_folder))
    pseudo = torch.from_numpy(model.encode_questions(cut_questions))
    real = torch.from_numpy(model.encode_questions([*made.questions.values()]))
    words = by_words(cut_questions, made.passages)

    def known(given: list[Passage], **options: Any) -> Tensor:
        return passages[[rows[str(passage.id)] for passage in given]]

    pairs = PseudoPairs(corpus, kinds=["sentence", "title"], drop_words=0.0, held_back=0.2)
    with patch.object(model, "encode_passages", known):
        add_fitted_layer(model, pairs, seed=0)
    assert model.ctx_model.encode_proj is not None
    matrix = model.ctx_model.encode_proj.weight.detach()

    def through(vectors: Tensor) -> Tensor:
        return normalize(vectors @ matrix.T, dim=-1)

    def ranked(questions: Tensor, vectors: Tensor) -> list[Ranking]:
        return by_vectors(questions, vectors, ids)

    before = ranked(pseudo, passages)
    after = ranked(through(pseudo), through(passages))
    own = {str(row): {str(passage.id): 1} for row, passage in enumerate(cut)}
    wanted = [
        [key for key, _ in ranking if key != str(passage.id)][:10]
        for ranking, passage in zip(fuse_linear(before, words, weight=0.5, k=DEPTH), cut, strict=True)
    ]

    def of_own(rankings: list[Ranking]) -> np.ndarray:
        values = values_of({str(row): ranking for row, ranking in enumerate(rankings)}, own, [METRIC])
        return np.array([values[key][METRIC] for key in own])

    def of_hybrid(rankings: list[Ranking]) -> np.ndarray:
        shares = []
        for ranking, passage, best in zip(rankings, cut, wanted, strict=True):
            found = [key for key, _ in ranking if key != str(passage.id)][:10]
            shares.append(len(set(found) & set(best)) / len(best))
        return np.array(shares)

    def of_real(rankings: list[Ranking]) -> np.ndarray:
        values = values_of(dict(zip(made.questions, rankings, strict=True)), made.qrels, [METRIC])
        return np.array([values[key][METRIC] for key in made.questions])

    cells = [
        name,
        f"{of_own(before).mean():.3f}",
        difference(of_own(after), of_own(before)),
        f"{of_hybrid(before).mean():.3f}",
        difference(of_hybrid(after), of_hybrid(before)),
        difference(of_real(ranked(through(real), through(passages))), of_real(ranked(real, passages))),
    ]
    return "| " + " | ".join(cells) + " |"


def difference(after: np.ndarray, before: np.ndarray) -> str:
    low, high = interval(after - before)
    return f"{(after - before).mean():+.3f} ({low:+.3f} to {high:+.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--foretold", action="store_true", help="afterwards: what held-back pseudo-questions say"
    )
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.foretold:
        print("| | own passage | | hybrid's ten best | | real questions |\n|---|---:|---:|---:|---:|---:|")
        for name, read in collections(given.data).items():
            print(foretold(name, read(), given.model, given.out), flush=True)
        return
    heads = [
        "",
        "BM25",
        "model",
        "adapted",
        "by seed",
        "adapted less model",
        "hybrid, model",
        "hybrid, adapted",
    ]
    heads += ["difference", "hybrid less BM25", "CPU s of the fit"]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for name, read in collections(given.data).items():
        lines.append(study(name, read(), given.model, given.out, given.seeds))
        print(lines[-1], flush=True)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
