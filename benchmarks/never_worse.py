"""Fifty fine-tunings with settings drawn among sensible and bad ones: how many end worse than the model that
they began with.

    python -m benchmarks.never_worse --data ../shared/data --out runs/never_worse

Four sets (SQuAD, SQuADShifts' New Wikipedia and Amazon, MedQuAD) are cut by article, paragraph, product or
subject into train, dev and test. Three static encoders are the bases: one has learned from pairs cut from all
passages, one from SQuAD's questions, one from those of all sets. Each fine-tuning draws a base, a set to
judge by, and settings. The dev questions choose (train.keep=better). The test questions, which the runs do
not see, are searched with the base, the last and the best checkpoint, and what the run opens. Paired tests by
random signs, Holm's correction over all fine-tunings for each way. The line of a fine-tuning is in
results.jsonl as soon as it is measured; the same command goes on after the last, and prints the tables.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.negatives_data import gzipped_rows
from dpr import BiEncoder
from dpr.core.records import Passage, Question, TrainingSample
from dpr.evaluation.significance import LEVEL, holm, paired_test
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.training_files.dpr import write_training_set
from dpr.storage.durable import append_jsonl
from dpr.training.validations.retrieval import RetrievalValidation, RetrievalValidationSettings

METRIC = "ndcg@10"
PARTS = ("test", "test", "dev", "train", "train", "train", "train", "train")
MOST_QUESTIONS = {"train": 8000, "dev": 400, "test": 1200}
MOST_OTHERS = 3000
"""Passages of the training part that are searched beside those of dev and test."""
_SEED = 26


class Row(NamedTuple):
    """A question with its passage; ``document``: what is in one part only."""

    document: str
    question: str
    passage: str
    title: str


def _squad(data: Path) -> Iterator[Row]:
    for row in gzipped_rows(data / "squad" / "squad-v1.1-train.800-paragraphs.jsonl.gz"):
        yield from (Row(row["context"], asked["question"], row["context"], "") for asked in row["qas"])
    yield from _articles(data / "squad" / "squad-v1.1-dev.shared-half.json.gz")


def _articles(file: Path) -> Iterator[Row]:
    with gzip.open(file, "rt", encoding="utf-8") as text:
        for article in json.load(text)["data"]:
            title = article["title"].replace("_", " ")
            for paragraph in article["paragraphs"]:
                yield from (
                    Row(title, asked["question"], paragraph["context"], title) for asked in paragraph["qas"]
                )


def _medquad(data: Path) -> Iterator[Row]:
    for row in gzipped_rows(data / "medquad" / "medquad.jsonl.gz"):
        yield Row(row["focus"], row["question"], row["answer"], "")


SETS = {
    "squad": _squad,
    "new_wiki": lambda data: _articles(data / "squadshifts" / "new_wiki_v1.0.json.gz"),
    "amazon": lambda data: _articles(data / "squadshifts" / "amazon_reviews_v1.0.json.gz"),
    "medquad": _medquad,
}
BASES = {"pairs": (), "squad": ("squad",), "all": tuple(SETS)}
"""The sets that they have learned the questions of; none: pairs cut from the passages."""
KINDS = {
    "sensible": 0.36,
    "rate x 100": 0.08,
    "temperature 1": 0.08,
    "shuffled labels": 0.08,
    "half of the labels wrong": 0.08,
    "ten rows, one epoch": 0.08,
    "fifty rows, forty epochs": 0.08,
    "another set's questions": 0.08,
    "batches of four": 0.08,
}
"""Kinds of fine-tunings, and how often each is drawn."""


class Draw(NamedTuple):
    """A fine-tuning."""

    number: int
    base: str
    judged_by: str
    kind: str
    train: str
    settings: tuple[str, ...]


def draws(count: int) -> list[Draw]:
    """The first ``count`` fine-tunings."""
    random, found = np.random.default_rng(_SEED), []
    for number in range(count):
        base, judged_by = (str(random.choice(list(names))) for names in (BASES, SETS))
        kind = str(random.choice(list(KINDS), p=list(KINDS.values())))
        rate, temperature = (
            float(random.choice(values)) for values in ((0.0005, 0.002, 0.005, 0.02), (0.03, 0.05, 0.1))
        )
        epochs, batch = (int(random.choice(values)) for values in ((1, 2, 4), (64, 256)))
        train = (
            str(random.choice([name for name in SETS if name != judged_by]))
            if kind == "another set's questions"
            else judged_by
        )
        if kind == "rate x 100":
            rate *= 100
        if kind == "temperature 1":
            temperature = 1.0
        if kind == "ten rows, one epoch":
            epochs, batch, train = 1, 10, f"{train}-10"
        elif kind == "fifty rows, forty epochs":
            epochs, batch, train = 40, 50, f"{train}-50"
        elif kind == "batches of four":
            epochs, batch, train = 1, 4, f"{train}-500"
        else:
            train = (
                f"{train}-{'shuffled' if kind == 'shuffled labels' else 'half' if 'half' in kind else '3000'}"
            )
        settings = [
            f"train.learning_rate={rate:g}",
            f"loss.temperature={temperature:g}",
            f"train.num_train_epochs={epochs}",
        ]
        settings += [
            f"train.batch_size={batch}",
            f"seed={number}",
            *(["train.eval_every_steps=10"] if epochs == 40 else []),
        ]
        found.append(Draw(number, base, judged_by, kind, train, tuple(settings)))
    return found


class Study:
    """All that is made, in one folder."""

    def __init__(self, data: Path, out: Path) -> None:
        self.data, self.out, self.results = data, out, out / "results.jsonl"
        self._searches: dict[str, RetrievalValidation] = {}
        self._of_base: dict[tuple[str, str], list[float]] = {}

    def cut(self) -> None:
        """Writes the parts of all sets, and one corpus of all training passages."""
        if (self.out / "sets" / "passages.jsonl").exists():
            return
        passages: dict[str, Passage] = {}
        for name, read in SETS.items():
            parts: dict[str, list[Row]] = {"train": [], "dev": [], "test": []}
            for row in dict.fromkeys(read(self.data)):
                parts[PARTS[int(hashlib.sha256(row.document.encode()).hexdigest(), 16) % len(PARTS)]].append(
                    row
                )
            for part, earlier in {"dev": ["test"], "train": ["test", "dev"]}.items():
                seen = {row.passage for other in earlier for row in parts[other]}
                parts[part] = [row for row in parts[part] if row.passage not in seen]
            others = [
                Passage(row.passage, row.title, f"t{number}")
                for number, row in enumerate(_by_passage(parts["train"])[:MOST_OTHERS])
            ]
            passages |= {
                row.passage: Passage(row.passage, row.title, f"{name}{len(passages)}")
                for row in parts["train"]
            }
            for part in ("dev", "test"):
                self._write_judged(self._set(name, part), parts[part], part, others)
            self._write_train(name, _sampled(parts["train"], MOST_QUESTIONS["train"]))
        write_passages(self.out / "sets" / "passages.jsonl", list(passages.values()))

    def _write_judged(self, folder: Path, rows: list[Row], part: str, others: list[Passage]) -> None:
        ids = {row.passage: f"p{number}" for number, row in enumerate(_by_passage(rows))}
        write_passages(
            folder / "corpus.jsonl",
            [Passage(row.passage, row.title, ids[row.passage]) for row in _by_passage(rows)] + others,
        )
        right: dict[str, set[str]] = {}
        for row in rows:
            right.setdefault(row.question, set()).add(ids[row.passage])
        asked = {
            f"q{number}": question
            for number, question in enumerate(_sampled(list(right), MOST_QUESTIONS[part]))
        }
        write_questions(
            folder / "questions.jsonl", [Question(question, key) for key, question in asked.items()]
        )
        write_qrels(
            folder / "qrels.tsv", {key: dict.fromkeys(right[question], 1) for key, question in asked.items()}
        )

    def _write_train(self, name: str, rows: list[Row]) -> None:
        samples = [TrainingSample(row.question, (Passage(row.passage, row.title),)) for row in rows]
        few = samples[:3000]
        turned = [
            replace(sample, positives=other.positives)
            for sample, other in zip(few, few[7:] + few[:7], strict=True)
        ]
        half = [
            wrong if number % 2 else right
            for number, (right, wrong) in enumerate(zip(few, turned, strict=True))
        ]
        kinds = {
            "-3000": few,
            "-10": few[:10],
            "-50": few[:50],
            "-500": few[:500],
            "-shuffled": turned,
            "-half": half,
        }
        for end, chosen in {"": samples, **kinds}.items():
            write_training_set(self._set(name, f"train{end}.jsonl"), chosen)

    def make_bases(self) -> None:
        """Trains them, without a validation: the last checkpoint is the base."""
        encoder, passages = self.out / "encoder", self.out / "sets" / "passages.jsonl"
        if not (encoder / "config.json").exists():
            _dpr(
                "new-encoder",
                f"corpus={passages}",
                f"out={encoder}",
                "layers=0",
                "hidden=256",
                "vocab_size=16000",
            )
        for name, learned in BASES.items():
            sets = [str(self._set(one, "train.jsonl")) for one in learned] or [
                f"{{file: {passages}, pairs: mixed}}"
            ]
            if not (self._base(name) / "metrics.json").exists():
                form = (
                    "encoder=static",
                    f"encoder.pretrained_model_cfg={encoder}",
                    "train.hard_negatives=0",
                    "train.eval_per_epoch=0",
                )
                size = ("train.num_train_epochs=4", "train.batch_size=256", "train.keep_last=1")
                _dpr(
                    "train",
                    *form,
                    *size,
                    f"train_datasets=[{','.join(sets)}]",
                    f"output_dir={self._base(name)}",
                    "device=cpu",
                )

    def measure(self, one: Draw) -> None:
        """Trains, and judges on test."""
        run, dev = self.out / "runs" / f"{one.number:02d}", self._set(one.judged_by, "dev")
        files = (
            f"corpus: {dev / 'corpus.jsonl'}, questions: {dev / 'questions.jsonl'}, qrels:"
            f" {dev / 'qrels.tsv'}"
        )
        name, _, rows = one.train.partition("-")
        train = self._set(name, f"train-{rows}.jsonl")
        chosen = ("train.best_metric=eval/dev/ndcg@10", "train.keep=better")
        quick = (
            "train.keep_last=1",
            "train.num_workers=0",
            "train.hard_negatives=0",
            "device=cpu",
        )
        sets = (f"train_datasets={train}", f"train.validation=[{{kind: retrieval, {files}, name: dev}}]")
        _dpr(
            "train",
            f"model_file={self._base(one.base)}",
            *sets,
            *chosen,
            *quick,
            *one.settings,
            f"output_dir={run}",
        )
        verdict, opened = (
            json.loads((run / "verdict.json").read_text()),
            json.loads((run / "run.json").read_text()),
        )
        ways = {
            "last": opened["last_checkpoint"],
            "best": verdict["best_checkpoint"],
            "better": opened["best_checkpoint"],
        }
        base, found = self._base_values(one), dict[str, Any]()
        for way, name in ways.items():
            values = next((found[other] for other in found if ways[other] == name), None)
            found[way] = values or self._judged(one, run / name, base)
        line = {**one._asdict(), "base_test": float(np.mean(base)), "test": found}
        append_jsonl(self.results, line)
        shutil.rmtree(run)

    def _judged(self, one: Draw, model: Path, base: list[float]) -> dict[str, float]:
        test = paired_test((base, self._values(one.judged_by, model)))
        return {
            "value": test.second,
            "difference": test.difference,
            "low": test.low,
            "high": test.high,
            "p": test.p_flips,
        }

    def _base_values(self, one: Draw) -> list[float]:
        key = (one.base, one.judged_by)
        if key not in self._of_base:
            self._of_base[key] = self._values(one.judged_by, self._base(one.base))
        return self._of_base[key]

    def _values(self, judged_by: str, model: Path) -> list[float]:
        """Of each test question."""
        if judged_by not in self._searches:
            test = self._set(judged_by, "test")
            files: dict[str, Any] = {
                key: str(test / f"{key}.{end}")
                for key, end in (("corpus", "jsonl"), ("questions", "jsonl"), ("qrels", "tsv"))
            }
            self._searches[judged_by] = RetrievalValidation(RetrievalValidationSettings(**files, name="test"))
        search = self._searches[judged_by]
        search(BiEncoder.load(model))
        return list(search.values[f"eval/test/{METRIC}"])

    def done(self) -> dict[int, dict[str, Any]]:
        """The lines of results by number."""
        lines = self.results.read_text(encoding="utf-8").splitlines() if self.results.exists() else []
        return {line["number"]: line for line in map(json.loads, lines)}

    def _set(self, name: str, part: str) -> Path:
        return self.out / "sets" / name / part

    def _base(self, name: str) -> Path:
        return self.out / "bases" / name


def _by_passage(rows: list[Row]) -> list[Row]:
    return list({row.passage: row for row in rows}.values())


def _sampled(values: list[Any], most: int) -> list[Any]:
    """So many of them, in an order of their own."""
    order = np.random.default_rng(_SEED).permutation(len(values))[:most]
    return [values[number] for number in order]


WAYS = {"last": "the last checkpoint", "best": "the best on dev", "better": "train.keep=better"}


def tables(lines: list[dict[str, Any]]) -> str:
    """Markdown: the ways over all fine-tunings, then by kind."""
    rows = [
        "| opened | worse | better | worse, p < 0.05 each | worst | mean difference | mean where the best on"
        " dev is better |"
    ]
    rows.append("|---|" + "---:|" * 6)
    adjusted = {way: holm([line["test"][way]["p"] for line in lines]) for way in WAYS}
    signs = {
        way: [np.sign(line["test"][way]["difference"]) * (p < LEVEL) for line, p in zip(lines, adjusted[way])]
        for way in WAYS
    }
    good = [number for number, sign in enumerate(signs["best"]) if sign > 0]
    for way, words in WAYS.items():
        differences = np.array([line["test"][way]["difference"] for line in lines])
        each = sum(line["test"][way]["p"] < LEVEL and line["test"][way]["difference"] < 0 for line in lines)
        counts = f"{signs[way].count(-1)} | {signs[way].count(1)} | {each}"
        rows.append(
            f"| {words} | {counts} | {differences.min():+.3f} | {differences.mean():+.3f} |"
            f" {differences[good].mean():+.4f} |"
        )
    rows += [
        "",
        "| kind | fine-tunings | worse: last | best | keep=better | mean difference: best | keep=better |",
    ]
    rows.append("|---|" + "---:|" * 6)
    for kind in KINDS:
        chosen = [number for number, line in enumerate(lines) if line["kind"] == kind]
        if chosen:
            worse = " | ".join(str(sum(signs[way][number] < 0 for number in chosen)) for way in WAYS)
            means = (
                np.mean([lines[number]["test"][way]["difference"] for number in chosen])
                for way in list(WAYS)[1:]
            )
            rows.append(
                f"| {kind} | {len(chosen)} | {worse} | " + " | ".join(f"{mean:+.3f}" for mean in means) + " |"
            )
    return "\n".join(rows)


def _dpr(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dpr", *arguments], check=True, stdout=subprocess.DEVNULL)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of the four sets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=50, help="fine-tunings")
    given = parser.parse_args(argv)
    study = Study(given.data, given.out)
    study.cut()
    study.make_bases()
    wanted = draws(given.count)
    for one in wanted:
        if one.number not in study.done():
            study.measure(one)
    done = study.done()
    print(tables([done[one.number] for one in wanted]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
