"""all-MiniLM-L6-v2 tuned on three collections, by this toolkit's trainer with several settings and by
sentence-transformers' own trainer: benchmarks/results/fine_tuning.md.

    python -m examples.minilm models/minilm
    python -m benchmarks.fine_tuning --data ../shared/data --model models/minilm --out runs/fine_tuning

Each training and each evaluation is a process of its own. What is there is not made again, so that a killed run goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from benchmarks.adapt_trained import MOST_PAIRS, Collection, beir, medquad, rows_of, squad
from benchmarks.study_table import interval
from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import read_qrels

System = Mapping[str, Mapping[str, float]]
"""nDCG@10 of each test question, by system: bm25, dense, hybrid."""
THEIRS = "sentence-transformers"
HALF_WAY = "half way to the start from "
LAST = "train.ema_decay=0"
TRAININGS = {
    "dpr": [],
    "last weights": [LAST],
    "last weights, rate 2e-5": [LAST, "train.learning_rate=2e-5"],
    "last weights, rate 2e-5, mined negatives": [LAST, "train.learning_rate=2e-5", "train.hard_negatives=1"],
    "mined negatives": ["train.hard_negatives=1"],
    "distilled from the hybrid": [
        "train.hard_negatives=3",
        "loss.kl_weight=1",
        "loss.teacher_temperature=0.1",
        "loss.nll_weight=0.2",
    ],
    "LoRA": ["encoder.adapter=lora", "train.learning_rate=2e-4"],
    "negatives that answer, too": ["train.hard_negatives=1"],
    "last weights, rate 2e-4, temperature 1, batch 8": [
        LAST,
        "train.learning_rate=2e-4",
        "loss.temperature=1",
        "train.batch_size=8",
    ],
}
"""Settings beside those of train=finetune. What is not named here is taken for settings itself."""


@dataclass
class Split:
    """Pairs to train on, pairs to watch, and what is asked afterwards."""

    train: list[tuple[str, Passage]]
    dev: list[tuple[str, Passage]]
    test: Collection


def scifact(folder: Path) -> Split:
    """The collection's own splits: 809 claims to train on, 300 to test. None is left to watch."""
    passages = {str(passage.id): passage for passage in beir(folder).passages}
    claims = {row["_id"]: row["text"] for row in rows_of(folder / "queries.jsonl")}
    train = []
    for claim, judged in read_qrels(folder / "qrels" / "train.tsv").items():
        train += [(claims[claim], passages[key]) for key, grade in judged.items() if grade > 0]
    return Split(train, [], beir(folder))


def held_out(folder: Path) -> Split:
    """Of SciFact's training claims 200 are asked, of the abstracts that some training claim has and 1,500 more; for
    the choice of settings."""
    pairs = scifact(folder).train
    claims = sorted({claim for claim, _ in pairs})
    asked = set(random.Random(0).sample(claims, 200))
    passages = beir(folder).passages
    random.Random(1).shuffle(passages)
    kept = {str(passage.id) for _, passage in pairs} | {str(passage.id) for passage in passages[:1500]}
    test = Collection([passage for passage in passages if str(passage.id) in kept])
    for claim, passage in pairs:
        if claim in asked:
            test.questions[claim] = claim
            test.qrels.setdefault(claim, {})[str(passage.id)] = 1
    return Split([pair for pair in pairs if pair[0] not in asked], [], test)


def squads(folder: Path) -> Split:
    """One question of each of 800 paragraphs, the last 100 to watch; asked are questions of other articles."""
    pairs = [
        (row["qas"][0]["question"], Passage(row["context"], "", f"train-{number}"))
        for number, row in enumerate(rows_of(folder / "squad-v1.1-train.800-paragraphs.jsonl.gz"))
    ]
    return Split(pairs[:700], pairs[700:], squad(folder / "squad-v1.1-dev.shared-half.json.gz"))


def medquads(file: Path) -> Split:
    """Some 800 pairs about other topics than those asked about, the last 100 to watch."""
    rows = list(rows_of(file))
    random.Random(0).shuffle(rows)  # as medquad() does
    topics = {row["focus"] for row in rows[:MOST_PAIRS]}
    answers = {row["answer"] for row in rows[:MOST_PAIRS]}
    others = [row for row in rows[MOST_PAIRS:] if row["focus"] not in topics]
    pairs = [
        (row["question"], Passage(row["answer"], "", f"train-{number}"))
        for number, row in enumerate(others[:800])
        if row["answer"] not in answers
    ]
    return Split(pairs[:-100], pairs[-100:], medquad(file))


def splits(data: Path) -> dict[str, Callable[[], Split]]:
    """Readers by name."""
    return {
        "scifact": lambda: scifact(data / "scifact"),
        "held-out": lambda: held_out(data / "scifact"),
        "squad": lambda: squads(data / "squad"),
        "medquad": lambda: medquads(data / "medquad" / "medquad.jsonl.gz"),
    }


def write_pairs(file: Path, pairs: Iterable[tuple[str, Passage]]) -> None:
    """Writes DPR's layout; pairs of one question are one row."""
    rows: dict[str, dict[str, Any]] = {}
    for question, passage in pairs:
        key = str(passage.id)
        rows.setdefault(question, {})[key] = {"title": passage.title, "text": passage.text, "passage_id": key}
    with open(file, "w", encoding="utf-8") as lines:
        for question, positives in rows.items():
            row = {"question": question, "positive_ctxs": [*positives.values()], "hard_negative_ctxs": []}
            lines.write(json.dumps(row) + "\n")


def write_wrong_negatives(file: Path, train: Path) -> None:
    """Gives each question its own passage without the first sentence as a negative, as a corpus of chunks that
    overlap does."""
    with open(file, "w", encoding="utf-8") as lines:
        for row in rows_of(train):
            passage = row["positive_ctxs"][0]
            _, _, rest = passage["text"].partition(". ")
            overlapping = {
                "title": passage["title"],
                "text": rest or passage["text"],
                "passage_id": passage["passage_id"] + "-2",
            }
            lines.write(json.dumps(row | {"hard_negative_ctxs": [overlapping]}) + "\n")


def prepare(split: Split, out: Path) -> None:
    """Writes train.jsonl, dev.jsonl where there are pairs to watch, and the test in BEIR's layout."""
    if (out / "ready").exists():
        return
    test = out / "test"
    (test / "qrels").mkdir(parents=True, exist_ok=True)
    write_passages(test / "corpus.jsonl", split.test.passages)
    with open(test / "queries.jsonl", "w", encoding="utf-8") as lines:
        for key, text in split.test.questions.items():
            lines.write(json.dumps({"_id": key, "text": text}) + "\n")
    with open(test / "qrels" / "test.tsv", "w", encoding="utf-8") as lines:
        lines.write("query-id\tcorpus-id\tscore\n")
        for key, judged in split.test.qrels.items():
            lines.writelines(f"{key}\t{name}\t{grade}\n" for name, grade in judged.items())
    write_pairs(out / "train.jsonl", split.train)
    if split.dev:
        write_pairs(out / "dev.jsonl", split.dev)
    (out / "ready").touch()


def train_theirs(model: Path, train: Path, run: Path, seed: int) -> None:
    """Trains with ``SentenceTransformerTrainer``, in this process, with the settings of train=finetune."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    ours = OmegaConf.load("conf/train/finetune.yaml")
    rows = [json.loads(line) for line in train.read_text(encoding="utf-8").splitlines()]
    positives = [row["positive_ctxs"][0] for row in rows]
    columns = {
        "anchor": [row["question"] for row in rows],
        "positive": [f"{passage['title']} {passage['text']}".strip() for passage in positives],
    }
    tuned = SentenceTransformer(str(model), device="cpu")
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(run / "log"),
        num_train_epochs=ours.train.num_train_epochs,
        per_device_train_batch_size=ours.train.batch_size,
        learning_rate=float(ours.train.learning_rate),
        warmup_steps=0.1,
        batch_sampler="no_duplicates",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=seed,
    )
    loss = MultipleNegativesRankingLoss(tuned, scale=1 / ours.loss.temperature)
    SentenceTransformerTrainer(
        model=tuned, args=arguments, train_dataset=Dataset.from_dict(columns), loss=loss
    ).train()
    tuned.save(str(run / "model"))


def once(command: list[str], took: Path) -> None:
    """Runs a command unless ``took`` is there; notes its seconds and memory in it, and what it says beside it."""
    if took.exists():
        return
    took.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(took.with_suffix(".log"), "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(command)}; see {log.name}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    facts = {
        "seconds": time.perf_counter() - started,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "gb": used.ru_maxrss / 2**20,
    }
    took.write_text(json.dumps(facts), encoding="utf-8")


def dpr(*words: str) -> list[str]:
    return [sys.executable, "-m", "dpr", *words]


def evaluated(model: Path, test: Path, out: Path) -> System:
    took = out.with_name(f"{out.name}.took.json")
    once(dpr("evaluate", f"model={model}", f"set={test}", f"out={out}"), took)
    found = {}
    for system in ("bm25", "dense", "hybrid"):
        result = json.loads((out / test.name / f"{system}.json").read_text(encoding="utf-8"))["per_question"]
        values = np.asarray(result["values"]["ndcg@10"], dtype=float)
        found[system] = dict(zip(result["ids"], values.tolist(), strict=True))
    return found


def difference(after: Mapping[str, float], before: Mapping[str, float], keys: Iterable[str]) -> str:
    each = np.array([after[key] - before[key] for key in keys])
    low, high = interval(each)
    return f"{each.mean():+.3f} ({low:+.3f} to {high:+.3f})"


HEADS = [
    "dense",
    "to the start",
    "known",
    "new",
    "hybrid",
    "to the start",
    "to BM25",
    "seconds",
    "CPU s",
    "GB",
]


def mean(values: Mapping[str, float]) -> float:
    return float(np.mean(list(values.values())))


def row(name: str, found: System, start: System, parts: list[list[str]], took: Mapping[str, float]) -> str:
    """A line of a table; ``parts`` are the questions whose passages were trained on, and the others."""
    everything = [key for part in parts for key in part]
    cells = [name, f"{mean(found['dense']):.3f}"]
    for keys in (everything, *parts):
        cells.append(difference(found["dense"], start["dense"], keys) if keys else "")
    cells.append(f"{mean(found['hybrid']):.3f}")
    cells.append(difference(found["hybrid"], start["hybrid"], everything))
    cells.append(difference(found["hybrid"], found["bm25"], everything))
    for key in ("seconds", "cpu", "gb"):
        cells.append(f"{took[key]:.1f}" if took else "")
    return "| " + " | ".join(cells) + " |"


def trained(name: str, given: argparse.Namespace, folder: Path, seed: int) -> tuple[Path, Path]:
    """Trains a model, or merges one that it trains first; returns its folder and the file of what it took."""
    run = folder / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
    took = folder / f"{run.name}.train.json"  # with_suffix would cut a name at the dot of a setting
    train = folder / "train.jsonl"
    if name == THEIRS:
        own = [f"--data={given.data}", f"--model={given.model}", f"--out={folder}"]
        command = [sys.executable, "-m", "benchmarks.fine_tuning", *own, f"--theirs={run}", f"--seed={seed}"]
        once(command, took)
        return run / "model", took
    if name.startswith(HALF_WAY):
        tuned, _ = trained(name.removeprefix(HALF_WAY), given, folder, seed)
        once(dpr("merge", f"base={given.model}", f"tuned={tuned}", "weights=0.5", f"out={run}"), took)
        return run, took
    if name == "negatives that answer, too":
        train = folder / "wrong.jsonl"
        write_wrong_negatives(train, folder / "train.jsonl")
    if name.endswith(("mined negatives", "from the hybrid")):
        mined = folder / "mined.jsonl"
        words = [f"out={mined}", f"model={given.model}", "max_relative_score=0.95", "per_question=5"]
        once(dpr("mine", str(train), *words), mined.with_suffix(".took.json"))
        train = mined
    if name.endswith("from the hybrid"):
        scored = folder / "scored.jsonl"
        words = [f"out={scored}", f"model={given.model}", "hybrid=linear", "hybrid_weight=0.5"]
        once(dpr("score", str(train), *words), scored.with_suffix(".took.json"))
        train = scored
    words = [f"model={given.model}", f"train_datasets={train}", f"seed={seed}", f"out={run}"]
    if (folder / "dev.jsonl").exists():
        words.append(f"dev_datasets={folder / 'dev.jsonl'}")
    settings = TRAININGS[name] if name in TRAININGS else name.split()
    once(dpr("train", "train=finetune", *settings, *words), took)
    return run, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["scifact", "squad", "medquad"])
    parser.add_argument("--trainings", nargs="+", default=["dpr", THEIRS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--elsewhere", type=Path, help="another collection in BEIR's layout, to see what is forgotten"
    )
    parser.add_argument("--theirs", type=Path, help="one training by sentence-transformers into this folder")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.theirs:
        train_theirs(given.model, given.out / "train.jsonl", given.theirs, given.seed)
        return

    for set_name in given.sets:
        folder = given.out / set_name
        split = splits(given.data)[set_name]()
        prepare(split, folder)
        seen = {str(passage.id) for _, passage in split.train}
        known = [key for key, judged in split.test.qrels.items() if seen & set(judged)]
        new = [key for key in split.test.qrels if key not in known]
        start = evaluated(given.model, folder / "test", folder / "start")
        print(
            f"\n{set_name}: {len(known) + len(new)} test questions, {len(known)} of a passage that was trained on"
        )
        print("| | " + " | ".join(HEADS) + " |")
        print(row(f"start (BM25 {mean(start['bm25']):.3f})", start, start, [known, new], {}))
        for seed in given.seeds:
            for name in given.trainings:
                model, took = trained(name, given, folder, seed)
                found = evaluated(model, folder / "test", took.with_name(f"{took.stem}-evaluated"))
                facts = json.loads(took.read_text(encoding="utf-8"))
                print(row(f"{name}, seed {seed}", found, start, [known, new], facts), flush=True)
                if given.elsewhere:
                    before = evaluated(
                        given.model, given.elsewhere, given.out / f"{given.elsewhere.name}-start"
                    )
                    after = evaluated(
                        model, given.elsewhere, took.with_name(f"{took.stem}-{given.elsewhere.name}")
                    )
                    cells = []
                    for system in ("dense", "hybrid"):
                        keys = [*before[system]]
                        cells.append(f"{system} {mean(before[system]):.3f} -> {mean(after[system]):.3f}")
                        cells.append(difference(after[system], before[system], keys))
                    print(f"    on {given.elsewhere.name}: {', '.join(cells)}", flush=True)
                for line in took.with_suffix(".log").read_text(encoding="utf-8").splitlines():
                    if " result: " in line:
                        print(line, flush=True)


if __name__ == "__main__":
    main()
