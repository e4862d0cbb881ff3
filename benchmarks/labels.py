"""all-MiniLM-L6-v2 fine-tuned on a few hundred labelled questions of a collection, by several recipes of this
toolkit's trainer and by sentence-transformers' own trainer: benchmarks/results/labels.md.

    python -m examples.minilm models/minilm
    python -m benchmarks.labels train --data ../shared/data --model models/minilm --out runs/labels
    python -m benchmarks.labels train ... --theirs 2e-5 1e-4
    python -m benchmarks.labels table --data ../shared/data --out runs/labels
    python -m benchmarks.labels numbers --data ../shared/data --out runs/labels --labels 50 100 200 400 800
    python -m benchmarks.labels rule --out runs/labels

The labelled questions of a collection are split by passage into train, choice and test. Each training is judged
by a search of all passages with the choice and test questions: with the fine-tuned weights, with their average
with the base model, and with the hybrid of each and BM25 at every weight. ``train`` keeps each result in --out and
skips those that are there. ``table`` compares them, ``numbers`` compares the gains by the number of labels, and
``rule`` simulates how ``dpr adapt`` chooses a model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.adapt_trained import (
    DEPTH,
    METRIC,
    Collection,
    beir,
    by_vectors,
    by_words,
    qed,
    rows_of,
    whole_squad,
)
from benchmarks.fine_tuning import once
from dpr import BiEncoder, BiEncoderTrainer
from dpr.adaptation.label_choice import WEIGHTS
from dpr.core.records import Passage
from dpr.data.pairs import PseudoPairs
from dpr.data.settings import SamplingSettings
from dpr.evaluation.ranking_metrics import values_of
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import read_qrels
from dpr.indexer.ranking import Ranking, fuse_linear
from dpr.jobs.merge import mixed

PRECISION = os.environ.get("PRECISION", "bf16")
"""Arithmetic of training and judging; a processor without bf16 is several times slower in it than in fp32."""
MOST_PASSAGES = 2000
MOST_QUESTIONS = 500
NUM_NEGATIVES = 3
RELATIVE_MARGIN = 0.05
"""Share of the positive's score by which a mined negative must score lower."""
THEIRS = "theirs"
"""First word of a recipe that sentence-transformers trains, such as ``theirs mined 2e-5``."""
THEIR_EPOCHS = 3

Record = dict[str, Any]
Sides = dict[str, list[str]]
"""Ids of the train, choice and test questions."""

RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ema": {"ema_decay": 0.999},
    "symmetric": {"symmetric_weight": 1.0},
    "rate 5e-5": {"learning_rate": 5e-5},
    "by words": {"sampling": SamplingSettings(group_by_words=True)},
    "mined": {"mined": True, "hard_negatives": 1},
    "pseudo": {"pseudo": 1.0},
    "pseudo half": {"pseudo": 0.5, "num_train_epochs": 2},
}
"""Settings of the trainer that differ from ``plain``. ``mined`` adds mined negatives, ``pseudo`` so many
pseudo-questions of the corpus for each pair. A recipe that is not listed is read as settings: ``ema_decay=0.9,seed=1``."""
PLAIN: dict[str, Any] = {
    "learning_rate": 1e-4,
    "temperature": 0.05,
    "hard_negatives": 0,
    "precision": PRECISION,
    "eval_at_start": False,
    "eval_per_epoch": 0,
    "keep_last": 1,
    "num_workers": 0,
    "log_batch_step": 0,
}


def scifact(folder: Path) -> Collection:
    """Reads the claims of train and test together."""
    made = beir(folder)
    texts = {str(row["_id"]): row["text"] for row in rows_of(folder / "queries.jsonl")}
    for key, judged in read_qrels(folder / "qrels" / "train.tsv").items():
        made.questions[key] = texts[key]
        made.qrels[key] = {name: grade for name, grade in judged.items() if grade > 0}
    return with_fewer_passages(made)


def medquad(file: Path) -> Collection:
    """Reads pairs of a question and its answer."""
    made = Collection()
    ids: dict[Any, str] = {}
    rows = list(rows_of(file))
    random.Random(0).shuffle(rows)
    for row in rows[:MOST_PASSAGES]:
        made.ask(row["question"], row["question"], Passage(row["answer"]), ids)
    return made


def collections(data: Path) -> dict[str, Callable[[], Collection]]:
    """Returns readers by name."""
    shifts = data / "squadshifts"
    return {
        "SciFact": lambda: scifact(data / "scifact"),
        "MedQuAD": lambda: medquad(data / "medquad" / "medquad.jsonl.gz"),
        "SQuAD": lambda: whole_squad(data / "squad" / "squad-v1.1-dev.shared-half.json.gz"),
        "Amazon": lambda: whole_squad(shifts / "amazon_reviews_v1.0.json.gz"),
        "New Wikipedia": lambda: whole_squad(shifts / "new_wiki_v1.0.json.gz"),
        "QED": lambda: qed(data / "qed" / "qed-dev.jsonl.gz"),
        "Cranfield": lambda: beir(data / "cranfield"),
        "NPL": lambda: with_fewer_passages(beir(data / "npl")),
    }


def with_fewer_passages(made: Collection) -> Collection:
    """Returns the collection with its judged passages and, up to ``MOST_PASSAGES``, others."""
    kept = {key for grades in made.qrels.values() for key in grades}
    others = [str(passage.id) for passage in made.passages if str(passage.id) not in kept]
    random.Random(0).shuffle(others)
    kept |= set(others[: max(0, MOST_PASSAGES - len(kept))])
    passages = [passage for passage in made.passages if str(passage.id) in kept]
    return Collection(passages, made.questions, made.qrels)


def split(made: Collection, num_labels: int, seed: int) -> Sides:
    """Returns question ids by side. Questions that share a passage are on one side, unless more than a fifth of
    all are linked in this way: then questions are drawn one by one."""
    linked: dict[str, str] = {}

    def first(name: str) -> str:
        while linked.setdefault(name, name) != name:
            name = linked[name]
        return name

    for key, judged in made.qrels.items():
        for passage in judged:
            linked[first(f"passage {passage}")] = first(key)
    group_of = {key: first(key) for key in made.qrels}
    groups = by_group(made.qrels, group_of)
    if max(map(len, groups.values())) > len(made.qrels) / 5:
        group_of = {key: key for key in made.qrels}
        groups = by_group(made.qrels, group_of)

    order = sorted(groups)
    random.Random(seed).shuffle(order)
    listed = [key for name in order for key in groups[name]]
    num_test = min(MOST_QUESTIONS, len(listed) // 3)
    labels = listed[num_test:][:num_labels]
    random.Random(seed).shuffle(labels)

    labelled = by_group(labels, group_of)
    order = sorted(labelled)
    random.Random(seed + 1).shuffle(order)
    sides: Sides = {"train": [], "choice": [], "test": listed[:num_test]}
    for name in order:
        side = "choice" if len(sides["choice"]) < len(labels) // 4 else "train"
        sides[side] += labelled[name]
    return sides


def by_group(keys: Iterable[str], group_of: dict[str, str]) -> dict[str, list[str]]:
    """Returns the keys of each group."""
    groups: dict[str, list[str]] = {}
    for key in keys:
        groups.setdefault(group_of[key], []).append(key)
    return groups


def training_pairs(made: Collection, sides: Sides) -> list[tuple[str, Passage]]:
    """Returns the pairs of the train questions, without passages that a choice or test question asks for."""
    held = {name for side in ("choice", "test") for key in sides[side] for name in made.qrels[key]}
    passages = {str(passage.id): passage for passage in made.passages}
    pairs = []
    for key in sides["train"]:
        for name, grade in made.qrels[key].items():
            if grade > 0 and name in passages and name not in held:  # Cranfield judges an empty passage
                pairs.append((made.questions[key], passages[name]))
    return pairs


def vectors_of(model: BiEncoder, asked: Sequence[str], passages: Sequence[Passage]) -> tuple[Tensor, Tensor]:
    """Returns the vectors of questions and passages, computed in ``PRECISION``."""
    model.eval()
    questions = torch.from_numpy(model.encode_questions(list(asked), precision=PRECISION))
    vectors = torch.from_numpy(model.encode_passages(list(passages), precision=PRECISION))
    return questions, vectors


class Judge:
    """nDCG@10 of each choice question, then of each test question, by weight of the model in the hybrid."""

    def __init__(self, made: Collection, sides: Sides) -> None:
        self.made = made
        self.ids = [str(passage.id) for passage in made.passages]
        self.keys = [*sides["choice"], *sides["test"]]
        self.num_choice = len(sides["choice"])
        self.asked = [made.questions[key] for key in self.keys]
        self.words = by_words(self.asked, made.passages)

    def of(self, model: BiEncoder) -> dict[str, list[float]]:
        questions, passages = vectors_of(model, self.asked, self.made.passages)
        dense = by_vectors(questions, passages, self.ids)
        found = {}
        for weight in WEIGHTS:
            rankings = fuse_linear(dense, self.words, weight=weight, k=DEPTH)
            found[f"{weight:g}"] = figures(self.keys, rankings, self.made)
        return found


def figures(keys: Sequence[str], rankings: Sequence[Ranking], made: Collection) -> list[float]:
    """Returns nDCG@10 of each question."""
    values = values_of(dict(zip(keys, rankings, strict=True)), made.qrels, [METRIC])
    return [round(values[key][METRIC], 5) for key in keys]


def average_with_base(tuned: BiEncoder, base: BiEncoder, run: Path) -> None:
    """Replaces the weights of ``tuned``, which is the model of ``run``, by their average with the base model."""
    weights = mixed([base.weights(), tuned.weights()], [0.5, 0.5])
    tuned.load_weights(weights, source=run)


def train_ours(
    made: Collection,
    pairs: Sequence[tuple[str, Passage]],
    recipe: str,
    *,
    model: Path,
    run: Path,
    seed: int,
) -> Record:
    """Trains by a recipe into ``run/model``. Returns the number of pairs and the CPU seconds."""
    base = BiEncoder(str(model))
    settings = PLAIN | settings_of(recipe)
    began = time.process_time()
    rows: list[Record] = []
    for question, passage in pairs:
        positive = {"title": passage.title, "text": passage.text}
        rows.append({"question": question, "positive_ctxs": [positive], "hard_negative_ctxs": []})
    if settings.pop("mined", False):
        add_negatives(rows, pairs, made, base)
    sets: list[Any] = [rows]
    share = settings.pop("pseudo", 0.0)
    if share:
        corpus = run / "corpus.jsonl"
        write_passages(corpus, made.passages)
        pseudo = PseudoPairs(corpus, kinds=["sentence", "title"], drop_words=0.0, name="pseudo")
        sets.append(pseudo)
        settings["train_sampling_rates"] = [1.0, share * len(rows) / len(pseudo)]
    BiEncoderTrainer(base, train_sets=sets, output_dir=run / "model", **({"seed": seed} | settings)).train()
    return {"pairs": len(rows), "train seconds": time.process_time() - began}


def settings_of(recipe: str) -> dict[str, Any]:
    """Returns the settings of a recipe by its name, or those that it lists."""
    if recipe in RECIPES:
        return dict(RECIPES[recipe])
    settings = {}
    for word in recipe.split(","):
        key, is_setting, value = word.partition("=")
        if not is_setting:
            raise SystemExit(f"no recipe {recipe}; there are {', '.join(RECIPES)}")
        settings[key] = json.loads(value)
    return settings


def add_negatives(
    rows: list[Record], pairs: Sequence[tuple[str, Passage]], made: Collection, base: BiEncoder
) -> None:
    """Gives each row the best passages of the base model that score below its positive by a margin."""
    questions, passages = vectors_of(base, [question for question, _ in pairs], made.passages)
    place = {str(passage.id): row for row, passage in enumerate(made.passages)}
    positives: dict[str, set[str]] = {}
    for question, passage in pairs:
        positives.setdefault(question, set()).add(str(passage.id))
    scores = questions @ passages.T
    for row, (question, passage), own_scores in zip(rows, pairs, scores, strict=True):
        limit = (1 - RELATIVE_MARGIN) * float(own_scores[place[str(passage.id)]])
        negatives: list[dict[str, str]] = []
        for found in own_scores.argsort(descending=True).tolist():
            other = made.passages[found]
            if float(own_scores[found]) < limit and str(other.id) not in positives[question]:
                negatives.append({"title": other.title, "text": other.text})
            if len(negatives) == NUM_NEGATIVES:
                break
        row["hard_negative_ctxs"] = negatives


def choose_ours(made: Collection, keys: Sequence[str], *, model: Path, run: Path) -> Record:
    """Searches with the choice questions, by the base model, the fine-tuned model and their average. Returns the
    CPU seconds."""
    began = time.process_time()
    base = BiEncoder(str(model))
    tuned = BiEncoder(str(run / "model"))
    asked = [made.questions[key] for key in keys]
    ids = [str(passage.id) for passage in made.passages]

    def search(searched: BiEncoder) -> None:
        questions, passages = vectors_of(searched, asked, made.passages)
        figures(keys, by_vectors(questions, passages, ids), made)

    search(base)
    search(tuned)
    average_with_base(tuned, base, run)
    search(tuned)
    return {"choice seconds": time.process_time() - began}


def train_theirs(
    made: Collection,
    pairs: Sequence[tuple[str, Passage]],
    recipe: str,
    *,
    keys: Sequence[str],
    model: Path,
    run: Path,
    seed: int,
) -> Record:
    """Trains with ``SentenceTransformerTrainer`` into ``run/model``. After each epoch the choice questions
    ``keys`` search all passages, and the best epoch is kept. Returns the number of pairs, and the CPU seconds of
    training and of those searches."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.util import mine_hard_negatives

    class TimedEvaluator(InformationRetrievalEvaluator):
        """Searches, with the CPU seconds that they took."""

        seconds = 0.0

        def __call__(self, *arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            found = super().__call__(*arguments, **options)
            self.seconds += time.process_time() - began
            return found

    _, *words, rate = recipe.split()
    epochs = THEIR_EPOCHS
    for word in words:
        if word.endswith("-epochs"):
            epochs = int(word.removesuffix("-epochs"))
    texts = {str(passage.id): f"{passage.title} {passage.text}".strip() for passage in made.passages}
    tuned = SentenceTransformer(str(model), device="cpu")
    began = time.process_time()
    columns = {
        "anchor": [question for question, _ in pairs],
        "positive": [texts[str(passage.id)] for _, passage in pairs],
    }
    rows = Dataset.from_dict(columns)
    if "mined" in words:
        rows = mine_hard_negatives(
            rows,
            tuned,
            corpus=[*texts.values()],
            relative_margin=RELATIVE_MARGIN,
            num_negatives=1,
        )
    evaluator = TimedEvaluator(
        queries={key: made.questions[key] for key in keys},
        corpus=texts,
        relevant_docs={key: set(made.qrels[key]) for key in keys},
    )
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(run / "log"),
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        learning_rate=float(rate),
        warmup_steps=0.1,  # below 1 it is a share of all steps
        batch_sampler="no_duplicates",
        bf16="bf16" in words,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=f"cosine_{METRIC}",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=seed,
    )
    SentenceTransformerTrainer(
        model=tuned,
        args=arguments,
        train_dataset=rows,
        loss=MultipleNegativesRankingLoss(tuned),
        evaluator=evaluator,
    ).train()
    tuned.save(str(run / "model"))
    seconds = time.process_time() - began - evaluator.seconds
    return {"pairs": len(rows), "train seconds": seconds, "choice seconds": evaluator.seconds}


def peak_gb() -> float:
    """Returns the highest resident memory of this process, in GiB. Unlike ``ru_maxrss`` it does not begin with
    the memory of the process that started this one."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**20
    raise RuntimeError("no VmHWM in /proc/self/status")


def train_alone(name: str, recipe: str, seed: int, given: argparse.Namespace) -> None:
    """Trains and chooses in this process, which does nothing else, and writes ``trained.json`` into its folder."""
    run = given.into
    made = collections(given.data)[name]()
    sides = split(made, given.labels, seed)
    pairs = training_pairs(made, sides)
    if recipe.startswith(THEIRS):
        record = train_theirs(
            made, pairs, recipe, keys=sides["choice"], model=given.model, run=run, seed=seed
        )
    else:
        record = train_ours(made, pairs, recipe, model=given.model, run=run, seed=seed)
        record |= choose_ours(made, sides["choice"], model=given.model, run=run)
    record["gb"] = peak_gb()
    (run / "trained.json").write_text(json.dumps(record), encoding="utf-8")


def trained_apart(name: str, recipe: str, seed: int, run: Path, given: argparse.Namespace) -> Record:
    """Trains in a process of its own. Returns what that measured, the CPU seconds of the whole process and its
    wall time."""
    command = [sys.executable, "-m", "benchmarks.labels", "train", "--into", str(run), "--sets", name]
    command += ["--data", str(given.data), "--model", str(given.model), "--out", str(given.out)]
    command += ["--recipes", recipe, "--labels", str(given.labels), "--seeds", str(seed)]
    took = run / "took.json"
    once(command, took)
    facts = json.loads(took.read_text(encoding="utf-8"))
    record: Record = json.loads((run / "trained.json").read_text(encoding="utf-8"))
    record["cpu"] = facts["cpu"]
    record["wall"] = facts["seconds"]
    return record


def measure(name: str, recipe: str, seed: int, given: argparse.Namespace) -> None:
    """Trains by a recipe, judges the model, and writes ``<Set>-<labels>-<seed>/<recipe>.json`` unless it is
    there."""
    folder = given.out / f"{name}-{given.labels}-{seed}".replace(" ", "-")
    file_name = recipe.replace(" ", "-")
    result = folder / f"{file_name}.json"
    is_theirs = recipe.startswith(THEIRS)
    is_apart = given.apart or is_theirs
    if result.exists() and (not is_apart or "wall" in json.loads(result.read_text(encoding="utf-8"))):
        return
    run = folder / file_name
    shutil.rmtree(run, ignore_errors=True)  # what a killed training left
    run.mkdir(parents=True)
    made = collections(given.data)[name]()
    sides = split(made, given.labels, seed)

    if is_apart:
        record = trained_apart(name, recipe, seed, run, given)
    else:
        pairs = training_pairs(made, sides)
        record = train_ours(made, pairs, recipe, model=given.model, run=run, seed=seed)

    judge = Judge(made, sides)
    base = BiEncoder(str(given.model))
    base_file = folder / "base.json"
    if not base_file.exists():
        began = time.process_time()
        of_base = {"sides": {side: len(keys) for side, keys in sides.items()}, "base": judge.of(base)}
        of_base["seconds"] = time.process_time() - began
        base_file.write_text(json.dumps(of_base), encoding="utf-8")
    tuned = BiEncoder(str(run / "model"))
    record["tuned"] = judge.of(tuned)
    if not is_theirs:
        average_with_base(tuned, base, run)
        record["average"] = judge.of(tuned)
    result.write_text(json.dumps(record), encoding="utf-8")
    shutil.rmtree(run)
    base_values = json.loads(base_file.read_text(encoding="utf-8"))["base"]
    print(summary(f"{name}/{recipe}/{seed}", base_values, record, judge.num_choice), flush=True)


def summary(label: str, base: dict[str, list[float]], record: Record, num_choice: int) -> str:
    """Returns a line with nDCG@10 of the test questions, and in brackets of the choice questions."""
    cells = [f"{label} ({record['pairs']} pairs, {record['train seconds']:.0f} s)"]
    for system, values in {"base": base, **record}.items():
        if isinstance(values, dict):
            alone = values["1"]
            hybrid = np.mean(values["0.5"][num_choice:])
            test = np.mean(alone[num_choice:])
            choice = np.mean(alone[:num_choice])
            cells.append(f"{system} {test:.3f} [{choice:.3f}], hybrid {hybrid:.3f}")
    cells.append(f"BM25 {np.mean(base['0'][num_choice:]):.3f}")
    return "; ".join(cells)


def train(given: argparse.Namespace) -> None:
    """Measures all recipes that were asked for, seed by seed."""
    words = [THEIRS]
    if given.theirs_mined:
        words.append("mined")
    if given.bf16:
        words.append("bf16")
    if given.epochs != THEIR_EPOCHS:
        words.append(f"{given.epochs}-epochs")
    recipes = list(given.recipes)
    for rate in given.theirs:
        recipes.append(" ".join([*words, rate]))
    if not recipes:
        recipes.append("plain")
    for seed in given.seeds:
        for recipe in recipes:
            for name in given.sets or collections(given.data):
                if given.into:
                    train_alone(name, recipe, seed, given)
                else:
                    measure(name, recipe, seed, given)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("--data", type=Path, required=True)
    training.add_argument("--model", type=Path, required=True)
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--sets", nargs="+")
    training.add_argument("--recipes", nargs="+", default=[], help="plain, unless --theirs is given")
    training.add_argument("--apart", action="store_true", help="each training in a process of its own")
    training.add_argument("--theirs", nargs="+", default=[], metavar="RATE", help="by sentence-transformers")
    training.add_argument("--theirs-mined", action="store_true", help="theirs with its mined negatives")
    training.add_argument("--bf16", action="store_true", help="theirs in bf16")
    training.add_argument("--epochs", type=int, default=THEIR_EPOCHS, help="of theirs")
    training.add_argument("--labels", type=int, default=600)
    training.add_argument("--seeds", type=int, nargs="+", default=[0])
    training.add_argument("--into", type=Path, help="one training alone, into this folder")
    comparing = commands.add_parser("table")
    comparing.add_argument("--data", type=Path, required=True)
    comparing.add_argument("--out", type=Path, required=True)
    comparing.add_argument("--labels", type=int, default=600)
    comparing.add_argument("--ours", default="plain", help="the recipe that is compared by set")
    counting = commands.add_parser("numbers")
    counting.add_argument("--data", type=Path, required=True)
    counting.add_argument("--out", type=Path, required=True)
    counting.add_argument("--sets", nargs="+", default=["Amazon", "MedQuAD", "SQuAD", "New Wikipedia"])
    counting.add_argument("--labels", type=int, nargs="+", required=True)
    counting.add_argument("--ours", default="plain")
    simulating = commands.add_parser("rule")
    simulating.add_argument("--out", type=Path, required=True)
    simulating.add_argument("--labels", type=int, default=600)
    simulating.add_argument("--recipes", nargs="+", help="all, unless given")
    simulating.add_argument("--draws", type=int, default=400)
    given = parser.parse_args()
    if given.command == "train":
        train(given)
        return
    from benchmarks import labels_table

    if given.command == "table":
        readers = collections(given.data)
        print(labels_table.tables(labels_table.read_runs(given.out, given.labels, readers), given.ours))
    elif given.command == "numbers":
        readers = {name: read for name, read in collections(given.data).items() if name in given.sets}
        by_number = {number: labels_table.read_runs(given.out, number, readers) for number in given.labels}
        print(labels_table.number_table(by_number, given.ours))
    else:
        print(labels_table.simulation(given.out, given.labels, given.recipes, given.draws))


if __name__ == "__main__":
    main()
