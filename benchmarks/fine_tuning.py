"""all-MiniLM-L6-v2 tuned on SciFact's claims, by this toolkit's trainer and by sentence-transformers' own with the same
claims, batch size, epochs and rate: benchmarks/results/fine_tuning.md.

    python -m examples.minilm models/minilm
    python -m benchmarks.fine_tuning --data ../shared/data --model models/minilm --out runs/fine_tuning

Each training and each evaluation is a process of its own. What is there is not made again, so that a killed run goes on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.study_table import interval
from dpr.formats.question_sets import read_qrels

SETTINGS = {"rate": 1e-4, "epochs": 3, "batch": 32, "temperature": 0.05}
"""Those of train=finetune."""
OURS = {
    "dpr": ["train=finetune"],
    "rate 2e-4, temperature 1, batch 8": [
        "train=finetune",
        "train.learning_rate=2e-4",
        "loss.temperature=1",
        "train.batch_size=8",
    ],
}
"""Our trainings, and what each is given."""
THEIRS = "sentence-transformers"


def prepare(scifact: Path, out: Path) -> Path:
    """Writes the claims of the training split with their abstracts, DPR's layout; returns the file."""
    file = out / "train.jsonl"
    if file.exists():
        return file
    with gzip.open(scifact / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        abstracts = {row["_id"]: row for row in map(json.loads, lines)}
    with open(scifact / "queries.jsonl", encoding="utf-8") as lines:
        claims = {row["_id"]: row["text"] for row in map(json.loads, lines)}
    rows = []
    for claim, judged in read_qrels(scifact / "qrels" / "train.tsv").items():
        positives = [
            {"title": abstracts[key]["title"], "text": abstracts[key]["text"], "passage_id": key}
            for key, grade in judged.items()
            if grade > 0
        ]
        rows.append({"question": claims[claim], "positive_ctxs": positives, "hard_negative_ctxs": []})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def train_theirs(model: Path, train: Path, run: Path, seed: int) -> None:
    """Trains with ``SentenceTransformerTrainer``, in this process."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    rows = [json.loads(line) for line in train.read_text(encoding="utf-8").splitlines()]
    positives = [row["positive_ctxs"][0] for row in rows]
    columns = {
        "anchor": [row["question"] for row in rows],
        "positive": [f"{passage['title']} {passage['text']}" for passage in positives],
    }
    tuned = SentenceTransformer(str(model), device="cpu")
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(run / "log"),
        num_train_epochs=SETTINGS["epochs"],
        per_device_train_batch_size=int(SETTINGS["batch"]),
        learning_rate=SETTINGS["rate"],
        warmup_steps=0.1,
        batch_sampler="no_duplicates",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=seed,
    )
    loss = MultipleNegativesRankingLoss(tuned, scale=1 / SETTINGS["temperature"])
    SentenceTransformerTrainer(
        model=tuned, args=arguments, train_dataset=Dataset.from_dict(columns), loss=loss
    ).train()
    tuned.save(str(run / "model"))


def once(command: list[str], took: Path) -> None:
    """Runs a command unless ``took`` is there; notes its seconds and memory in it."""
    if took.exists():
        return
    took.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    facts = {
        "seconds": time.perf_counter() - started,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "gb": used.ru_maxrss / 2**20,
    }
    took.write_text(json.dumps(facts), encoding="utf-8")


def evaluated(model: Path, scifact: Path, out: Path) -> dict[str, dict[str, float]]:
    """nDCG@10 of each test claim, by system: bm25, dense, hybrid."""
    command = [sys.executable, "-m", "dpr", "evaluate", f"model={model}", f"set={scifact}", f"out={out}"]
    once(command, out.with_suffix(".took.json"))
    found = {}
    for system in ("bm25", "dense", "hybrid"):
        result = json.loads((out / "scifact" / f"{system}.json").read_text(encoding="utf-8"))["per_question"]
        values = np.asarray(result["values"]["ndcg@10"], dtype=float)
        found[system] = dict(zip(result["ids"], values.tolist(), strict=True))
    return found


def difference(after: Mapping[str, float], before: Mapping[str, float], claims: list[str]) -> str:
    each = np.array([after[claim] - before[claim] for claim in claims])
    low, high = interval(each)
    return f"{each.mean():+.3f} ({low:+.3f} to {high:+.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--theirs", type=Path, help="one training by sentence-transformers into this folder")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    scifact = given.data / "scifact"
    train = prepare(scifact, given.out)
    if given.theirs:
        train_theirs(given.model, train, given.theirs, given.seed)
        return

    judged = {split: read_qrels(scifact / "qrels" / f"{split}.tsv") for split in ("train", "test")}
    trained = {key for grades in judged["train"].values() for key in grades}
    known = [claim for claim, grades in judged["test"].items() if trained & set(grades)]
    new = [claim for claim in judged["test"] if claim not in known]
    start = evaluated(given.model, scifact, given.out / "start")
    print(
        f"SciFact, {len(known) + len(new)} test claims, {len(known)} of an abstract that a training claim has, too"
    )
    heads = ["", "dense", "to the start", "abstracts known", "abstracts new", "hybrid", "hybrid to BM25"]
    print("| " + " | ".join([*heads, "seconds", "CPU s", "GB"]) + " |")
    everything = known + new

    def line(name: str, found: dict[str, dict[str, float]], took: dict[str, Any]) -> None:
        cells = [name, f"{np.mean(list(found['dense'].values())):.3f}"]
        cells += [difference(found["dense"], start["dense"], part) for part in (everything, known, new)]
        cells += [f"{np.mean(list(found['hybrid'].values())):.3f}"]
        cells += [difference(found["hybrid"], found["bm25"], everything)]
        cells += [f"{took[key]:.1f}" if key in took else "" for key in ("seconds", "cpu", "gb")]
        print("| " + " | ".join(cells) + " |", flush=True)

    line("all-MiniLM-L6-v2", start, {})
    for seed in range(given.seeds):
        for name in ("dpr", THEIRS, *list(OURS)[1:]):
            run = given.out / f"{name.partition(',')[0].replace(' ', '-')}-{seed}"
            took = run.with_suffix(".train.json")
            if name == THEIRS:
                own = [f"--data={given.data}", f"--model={given.model}", f"--out={given.out}"]
                command = [sys.executable, "-m", "benchmarks.fine_tuning", *own]
                once([*command, f"--theirs={run}", f"--seed={seed}"], took)
                model = run / "model"
            else:
                words = [f"model={given.model}", f"train_datasets={train}", f"seed={seed}", f"out={run}"]
                once([sys.executable, "-m", "dpr", "train", *OURS[name], *words], took)
                model = run
            found = evaluated(model, scifact, run.with_name(f"{run.name}-evaluated"))
            line(f"{name}, seed {seed}", found, json.loads(took.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
