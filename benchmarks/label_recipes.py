"""What each part of a recipe adds when all-MiniLM-L6-v2 is fine-tuned on few labelled questions of a corpus:
benchmarks/results/labels.md.

    python -m examples.minilm models/minilm
    python -m benchmarks.label_recipes --data ../shared/data --model models/minilm --out runs/labels

The labelled questions of a set are split by passage into train, choice and test. Each training is judged by
searching all passages with the choice and test questions: the tuned weights, their average with the base
model, and the hybrid of each with BM25 at every weight. What is measured is kept in --out, and the same
command goes on after the last.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.adapt_trained import DEPTH, METRIC, Collection, beir, by_vectors, by_words, qed, rows_of
from dpr import BiEncoder, BiEncoderTrainer
from dpr.core.records import Passage
from dpr.data.pairs import PseudoPairs
from dpr.data.settings import DataSetSettings, SamplingSettings
from dpr.evaluation.ranking_metrics import values_of
from dpr.formats.corpora import write_passages
from dpr.indexer.ranking import Ranking, fuse_linear
from dpr.jobs.merge import mixed

MOST_PASSAGES = 2000
MOST_QUESTIONS = 500
WEIGHTS = tuple(number / 10 for number in range(11))
"""Weights of the model in the hybrid: 0 is BM25 alone, 1 the model alone."""
SIDES = ("train", "choice", "test")

RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ema": {"ema_decay": 0.999},
    "ema .99": {"ema_decay": 0.99},
    "symmetric": {"symmetric_weight": 1.0},
    "rate 5e-5": {"learning_rate": 5e-5},
    "rate 2e-5": {"learning_rate": 2e-5},
    "rate 2e-4": {"learning_rate": 2e-4},
    "1 epoch": {"num_train_epochs": 1},
    "6 epochs": {"num_train_epochs": 6},
    "batch 16": {"batch_size": 16},
    "batch 64": {"batch_size": 64},
    "temperature .02": {"temperature": 0.02},
    "temperature .1": {"temperature": 0.1},
    "by words": {"sampling": SamplingSettings(group_by_words=True)},
    "mined": {"mined": 1, "hard_negatives": 1},
    "pseudo": {"pseudo": 1.0},
    "lora": {"lora": True, "learning_rate": 2e-4},
}


def split(made: Collection, num_labels: int, seed: int) -> dict[str, list[str]]:
    """Question ids by side. Questions that share a passage are on one side, unless more than a fifth of all
    are linked in this way: then questions are drawn one by one."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    for key, judged in made.qrels.items():
        for passage in judged:
            parent[root(f"passage {passage}")] = root(key)
    groups: dict[str, list[str]] = {}
    for key in made.qrels:
        groups.setdefault(root(key), []).append(key)
    if max(map(len, groups.values())) > len(made.qrels) / 5:
        groups = {key: [key] for key in made.qrels}
    order = sorted(groups)
    random.Random(seed).shuffle(order)
    listed = [key for name in order for key in groups[name]]
    num_test = min(MOST_QUESTIONS, len(listed) // 3)
    labels = listed[num_test:][:num_labels]
    random.Random(seed).shuffle(labels)
    first = sorted({root(key) if len(groups) < len(made.qrels) else key for key in labels})
    random.Random(seed + 1).shuffle(first)
    sides: dict[str, list[str]] = {"train": [], "choice": [], "test": listed[:num_test]}
    by_group: dict[str, list[str]] = {}
    for key in labels:
        by_group.setdefault(root(key) if len(groups) < len(made.qrels) else key, []).append(key)
    for name in first:
        side = "choice" if len(sides["choice"]) < len(labels) // 4 else "train"
        sides[side] += by_group[name]
    return sides


def passages_of(made: Collection) -> Collection:
    """The collection with at most ``MOST_PASSAGES`` passages besides those that are judged."""
    judged = {key for grades in made.qrels.values() for key in grades}
    others = [passage for passage in made.passages if str(passage.id) not in judged]
    random.Random(0).shuffle(others)
    kept = {str(passage.id) for passage in others[: max(0, MOST_PASSAGES - len(judged))]} | judged
    return Collection(
        [passage for passage in made.passages if str(passage.id) in kept], made.questions, made.qrels
    )


def squad_like(file: Path) -> Collection:
    """All questions of a file in SQuAD's layout."""
    made = Collection()
    ids: dict[Any, str] = {}
    (content,) = rows_of(file)
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                made.ask(asked["question"], asked["id"], Passage(paragraph["context"]), ids)
    return made


def medquad(file: Path) -> Collection:
    made = Collection()
    ids: dict[Any, str] = {}
    rows = list(rows_of(file))
    random.Random(0).shuffle(rows)
    for row in rows[:MOST_PASSAGES]:
        made.ask(row["question"], row["question"], Passage(row["answer"]), ids)
    return made


def scifact(folder: Path) -> Collection:
    """Claims of train and test together; the split is by abstract."""
    made = beir(folder)
    texts = {str(row["_id"]): row["text"] for row in rows_of(folder / "queries.jsonl")}
    from dpr.formats.question_sets import read_qrels

    for key, judged in read_qrels(folder / "qrels" / "train.tsv").items():
        made.questions[key] = texts[key]
        made.qrels[key] = {name: grade for name, grade in judged.items() if grade > 0}
    return passages_of(made)


def collections(data: Path) -> dict[str, Callable[[], Collection]]:
    shifts = data / "squadshifts"
    return {
        "SciFact": lambda: scifact(data / "scifact"),
        "MedQuAD": lambda: medquad(data / "medquad" / "medquad.jsonl.gz"),
        "SQuAD": lambda: squad_like(data / "squad" / "squad-v1.1-dev.shared-half.json.gz"),
        "Amazon": lambda: squad_like(shifts / "amazon_reviews_v1.0.json.gz"),
        "New Wikipedia": lambda: squad_like(shifts / "new_wiki_v1.0.json.gz"),
        "QED": lambda: qed(data / "qed" / "qed-dev.jsonl.gz"),
        "Cranfield": lambda: beir(data / "cranfield"),
        "NPL": lambda: passages_of(beir(data / "npl")),
    }


class Judge:
    """nDCG@10 of each choice and test question, by weight of the model in the hybrid."""

    def __init__(self, made: Collection, sides: dict[str, list[str]]) -> None:
        self.made = made
        self.ids = [str(passage.id) for passage in made.passages]
        self.keys = [*sides["choice"], *sides["test"]]
        self.num_choice = len(sides["choice"])
        self.asked = [made.questions[key] for key in self.keys]
        self.words = by_words(self.asked, made.passages)

    def figures(self, rankings: list[Ranking]) -> list[float]:
        values = values_of(dict(zip(self.keys, rankings, strict=True)), self.made.qrels, [METRIC])
        return [round(values[key][METRIC], 5) for key in self.keys]

    def of(self, model: BiEncoder) -> dict[str, list[float]]:
        model.eval()
        with torch.autocast("cpu", torch.bfloat16):
            questions = torch.from_numpy(model.encode_questions(self.asked))
            passages = torch.from_numpy(model.encode_passages(self.made.passages))
        dense = by_vectors(questions, passages, self.ids)
        return {
            f"{weight:g}": self.figures(fuse_linear(dense, self.words, weight=weight, k=DEPTH))
            for weight in WEIGHTS
        }


def trained(
    made: Collection, pairs: list[list[Any]], model: BiEncoder, run: Path, seed: int, **recipe: Any
) -> None:
    """Trains ``model`` by a recipe."""
    pseudo = recipe.pop("pseudo", 0)
    recipe.pop("mined", None)
    recipe.pop("lora", None)
    sets: list[Any] = [pairs]
    if pseudo:
        corpus = run / "corpus.jsonl"
        write_passages(corpus, made.passages)
        cut = PseudoPairs(corpus, kinds=["sentence", "title"], drop_words=0.0, name="pseudo")
        sets.append((cut, DataSetSettings(weight=pseudo)))
    options = {"learning_rate": 1e-4, "temperature": 0.05, "hard_negatives": 0, "precision": "bf16"} | recipe
    BiEncoderTrainer(
        model,
        train_sets=sets,
        output_dir=run / "run",
        seed=seed,
        eval_at_start=False,
        eval_per_epoch=0,
        keep_last=1,
        num_workers=0,
        log_batch_step=0,
        **options,
    ).train()


def pairs_of(made: Collection, keys: Iterable[str], held: set[str]) -> list[list[Any]]:
    texts = {str(passage.id): passage for passage in made.passages}
    rows = []
    for key in keys:
        for name, grade in made.qrels[key].items():
            if grade > 0 and name not in held:
                rows.append((made.questions[key], texts[name]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--recipes", nargs="+", default=["plain"])
    parser.add_argument("--labels", type=int, default=800)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    given = parser.parse_args()
    readers = collections(given.data)
    for seed in given.seeds:
        for recipe in given.recipes:
            for name in given.sets or readers:
                measure(name, readers[name], recipe, seed, given)


def measure(name: str, read: Callable[[], Collection], recipe: str, seed: int, given: Any) -> None:
    folder = given.out / f"{name}-{given.labels}-{seed}".replace(" ", "-")
    result = folder / f"{recipe.replace(' ', '-')}.json"
    if result.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    made = read()
    sides = split(made, given.labels, seed)
    judge = Judge(made, sides)
    base = BiEncoder(str(given.model))
    found_base = folder / "base.json"
    if not found_base.exists():
        began = time.process_time()
        record = {"sides": {side: len(keys) for side, keys in sides.items()}, "base": judge.of(base)}
        found_base.write_text(json.dumps(record | {"seconds": time.process_time() - began}))
    held = {key for side in ("choice", "test") for question in sides[side] for key in made.qrels[question]}
    pairs = pairs_of(made, sides["train"], held)
    weights = {key: tensor.clone() for key, tensor in base.weights().items()}
    run = folder / recipe.replace(" ", "-")
    run.mkdir(exist_ok=True)
    began = time.process_time()
    settings = RECIPES.get(recipe)
    if settings is None:
        settings = {
            key: json.loads(value) for key, _, value in (word.partition("=") for word in recipe.split(","))
        }
    rows = [
        {
            "question": question,
            "positive_ctxs": [{"title": passage.title, "text": passage.text}],
            "hard_negative_ctxs": [],
        }
        for question, passage in pairs
    ]
    trained(made, rows, base, run, seed, **settings)
    seconds = time.process_time() - began
    best = BiEncoder(str(run / "run"))
    tuned = {key: tensor.clone() for key, tensor in best.weights().items()}
    record = {"pairs": len(rows), "train seconds": seconds, "tuned": judge.of(best)}
    best.load_weights(mixed([weights, tuned], [0.5, 0.5]), source=run)
    record["average"] = judge.of(best)
    result.write_text(json.dumps(record))
    import shutil

    shutil.rmtree(run)
    start = json.loads(found_base.read_text())["base"]
    cells = [f"{name}/{recipe}/{seed} ({len(rows)} pairs, {seconds:.0f} s)"]
    for system, values in (("base", start), *((key, record[key]) for key in ("tuned", "average"))):
        cells.append(
            f"{system} "
            + " ".join(f"{np.mean(values[w][judge.num_choice :]):.3f}" for w in ("1", "0.6", "0.5"))
            + f" [{np.mean(values['1'][: judge.num_choice]):.3f}]"
        )
    cells.append(f"bm25 {np.mean(start['0'][judge.num_choice :]):.3f}")
    print("; ".join(cells), flush=True)


if __name__ == "__main__":
    main()
