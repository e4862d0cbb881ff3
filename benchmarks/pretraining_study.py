"""``python -m benchmarks.pretraining_study --data ../shared/data --out runs/pretraining_study``: what pre-training on text alone is worth.

A transformer from random weights, the same after ``dpr pretrain`` with each objective, then 200 steps of 96 labelled questions of SQuAD
(``benchmarks.study_data``). Judged on articles that the labels do not touch. The text is Wikipedia: the labelled passages, New Wikipedia of
SQuADShifts and QED; with ``--with-searched`` the passages that are searched, too. Each stage is a public command and is skipped when it is
done, so that a run that was killed goes on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.negatives_data import gzipped_rows
from benchmarks.study import dpr
from benchmarks.study_data import write_set
from benchmarks.study_table import Measured, table

METRICS = ("mrr@10", "ndcg@10")
NONE, PAIRS = "none", "pairs"
"""The second is ``dpr train`` on pairs: there is nothing to mask."""
_NO_DECODER: Mapping[str, object] = {"pretrain.masked": 0.15, "pretrain.decoder_masked": 0}
OBJECTIVES: dict[str, Mapping[str, object]] = {
    "masked tokens": {**_NO_DECODER, "pretrain.pairs_weight": 0},
    PAIRS: {
        "encoder.shared": "true",
        "encoder.pooling": "mean",
        "encoder.normalize": "true",
        "train.hard_negatives": 0,
        "train.eval_per_epoch": 0,
    },
    "pairs, masked tokens": _NO_DECODER,
    "masked tokens, decoder": {"pretrain.masked": 0.3, "pretrain.decoder_masked": 0.5, "pretrain.pairs_weight": 0},
    "pairs, masked tokens, decoder": {"pretrain.masked": 0.3, "pretrain.decoder_masked": 0.5},
}
PRETRAINING: Mapping[str, object] = {
    "encoder.sequence_length": 96,
    "encoder.question_length": 32,
    "encoder.dropout": 0,
    "loss.temperature": 0.07,
    "train.batch_size": 96,
    "train.learning_rate": 1e-3,
    "train.embedding_lr_factor": 5,
    "train.weight_decay": 0.1,
    "train.num_train_epochs": 100,  # the steps end it
    "train.keep_last": 1,
}
LABELLED: Mapping[str, object] = {
    "loss.temperature": 0.07,
    "train.max_steps": 200,
    "train.eval_every_steps": 0,
    "train.hard_negatives": 0,
    "train.keep_last": 1,
}


def run(command: str, made: Path, *words: str, **settings: object) -> dict[str, float]:
    """Runs a command unless what it makes is there. Returns the seconds that it took if it was not interrupted, which a file keeps."""
    note = made.with_name(f"{made.name}.{command}.json")
    if not made.exists():
        is_new, wall, cpu = not made.parent.exists(), time.perf_counter(), sum(os.times()[:4])
        dpr(made, command, *words, *(f"{key}={value}" for key, value in settings.items()), "device=cpu")
        if is_new:
            note.write_text(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": sum(os.times()[:4]) - cpu}), encoding="utf-8")
    took: dict[str, float] = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    return took


class Study:
    def __init__(self, data: Path, out: Path, *, steps: int, with_searched: bool) -> None:
        self.out, self.steps = out, steps
        self.squad, self.encoder = out / "squad", out / "encoder"
        write_set("squad", data, self.squad, dpr)
        texts = _write_texts(_wikipedia(data, self.squad), out / "texts.jsonl")
        searched = list(map(json.loads, (self.squad / "test" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()))
        both = _write_texts([(row.get("title", ""), row["text"]) for row in [*texts, *searched]], out / "texts_and_searched.jsonl")
        self.texts = out / ("texts_and_searched.jsonl" if with_searched else "texts.jsonl")
        self.label = f", {steps} steps" + (", of the searched passages too" if with_searched else "")
        print(f"{len(texts):,} texts, {len(both):,} with those that are searched", flush=True)
        read = (f"corpus={out / 'texts.jsonl'}", f"questions={self.squad / 'train.jsonl'}", "vocab_size=12000")
        dpr(self.encoder, "new-encoder", *read, "layers=4", "hidden=256", f"out={self.encoder}")

    def measure(self, name: str, seed: int) -> tuple[str, Measured]:
        """The labelled steps of a seed, after the pre-training of an objective."""
        title = name if name == NONE else name + self.label
        start, took = ({"encoder.pretrained_model_cfg": self.encoder}, {}) if name == NONE else self._pretrained(name, title)
        model = self.out / "labelled" / f"{_slug(title)}.{seed}"
        files = {"train_datasets": self.squad / "train.jsonl", "output_dir": model, "seed": seed}
        run("train", model / "metrics.json", "encoder=quickstart", "train=quickstart", **start, **files, **LABELLED)
        judged = model.with_name(f"{model.name}.judged")
        asked = {"set": self.squad / "test", "split": "train", "systems": "[dense]", "model_file": model, "output_dir": judged}
        run("evaluate", judged / "test" / "dense.json", **asked)
        values = json.loads((judged / "test" / "dense.json").read_text(encoding="utf-8"))["per_question"]
        return title, Measured({metric: dict(zip(values["ids"], values["values"][metric], strict=True)) for metric in METRICS}, **took)

    def _pretrained(self, name: str, title: str) -> tuple[dict[str, object], dict[str, float]]:
        """The settings that start from a pre-trained encoder, and the seconds of its training."""
        folder = self.out / "pretrained" / _slug(title)
        data = f"[{{file: {self.texts}, pairs: mixed}}]" if name == PAIRS else f"[{self.texts}]"
        named = {"train_datasets": data, "output_dir": folder, "encoder.pretrained_model_cfg": self.encoder}
        settings = {**named, **PRETRAINING, "train.max_steps": self.steps, **OBJECTIVES[name]}
        if name == PAIRS:
            return {"model_file": folder, "init": "weights"}, run(
                "train", folder / "metrics.json", **settings, **{"encoder.pretrained": "false"}
            )
        start = folder / "encoder"
        return {"encoder.pretrained_model_cfg": start, "encoder.pretrained": "true"}, run("pretrain", start, **settings)


def _wikipedia(data: Path, squad: Path) -> Iterator[tuple[str, str]]:
    for line in (squad / "train.jsonl").read_text(encoding="utf-8").splitlines():
        yield from ((passage.get("title", ""), passage["text"]) for passage in json.loads(line)["positive_ctxs"])
    with gzip.open(data / "squadshifts" / "new_wiki_v1.0.json.gz", "rt", encoding="utf-8") as shifted:
        articles = json.load(shifted)["data"]
    for article in articles:
        yield from ((article["title"].replace("_", " "), paragraph["context"]) for paragraph in article["paragraphs"])
    for row in gzipped_rows(data / "qed" / "qed-dev.jsonl.gz"):
        yield row["title_text"], row["paragraph_text"]


def _write_texts(texts: Any, file: Path) -> list[dict[str, str]]:
    """Writes each text once, those under 20 letters not at all."""
    once: dict[str, str] = {}
    for title, text in texts:
        once.setdefault(" ".join(text.split()), title)
    kept = [(title, text) for text, title in once.items() if len(text) >= 20]
    rows = [{"_id": f"w{number}", "title": title, "text": text} for number, (title, text) in enumerate(kept)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def _slug(name: str) -> str:
    return name.replace(",", "").replace(" ", "_")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with squad/, squadshifts/ and qed/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--objectives", nargs="+", choices=[NONE, *OBJECTIVES], default=[NONE, *OBJECTIVES])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of the labelled steps")
    parser.add_argument("--steps", type=int, default=300, help="of pre-training")
    parser.add_argument("--with-searched", action="store_true", help="pre-train on the passages that are searched, too")
    given = parser.parse_args()
    study = Study(given.data, given.out, steps=given.steps, with_searched=given.with_searched)
    runs: dict[str, dict[int, Measured]] = {}
    for seed in given.seeds:
        for name in given.objectives:
            title, measured = study.measure(name, seed)
            runs.setdefault(title, {})[seed] = measured
            values = measured.questions[METRICS[0]].values()
            print(f"{title}, seed {seed}: {METRICS[0]} {sum(values) / len(values):.4f}", flush=True)
    print("\n" + table(runs, METRICS, NONE))


if __name__ == "__main__":
    main()
