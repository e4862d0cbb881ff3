"""``python -m benchmarks.students --data ../shared/data --out runs/students``: the tables of
benchmarks/results/students.md.

A transformer learns labels of SQuAD and MedQuAD. Its questions then go through a table, and a static encoder
learns its vectors, with and without labels. All are judged on questions of other articles and subjects, and
on Cranfield, of which there are no labels. Texts without labels are the passages of the labels and those that
are searched. Every run is skipped where its figures are there, so what was killed goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.study import dpr
from benchmarks.study_data import qrels_of, write_set
from benchmarks.study_table import Measured, interval, per_question
from dpr import BiEncoder, Passage
from dpr.core.batch import TokenBatch
from dpr.evaluation.ranking_metrics import evaluate_questions
from dpr.formats.corpora import read_passages
from dpr.formats.question_sets import read_qrels, read_questions

SETS = {"squad": "SQuAD", "medquad": "MedQuAD", "cranfield": "Cranfield"}
LABELLED = ("squad", "medquad")
METRIC, DEPTH = "ndcg@10", 10
Settings = Mapping[str, object]

_ALWAYS: Settings = {
    "train.hard_negatives": 0,
    "train.eval_per_epoch": 0,
    "train.keep_last": 1,
    "device": "cpu",
}
_CROPPED: Settings = {"train.augment.crop_tokens": 48}
_TRANSFORMER: Settings = {
    **_CROPPED,
    "encoder": "quickstart",
    "encoder.pooling": "idf_sqrt",
    "encoder.normalize": "true",
    "loss.temperature": 0.05,
    "train.batch_size": 96,
    "train.learning_rate": 0.001,
    "train.embedding_lr_factor": 5,
    "train.num_train_epochs": 2,
}
_TABLE: Settings = {
    "encoder.fix_ctx_encoder": "true",
    "train.batch_size": 256,
    "train.learning_rate": 0.01,
}
_VECTORS: Settings = {"loss.nll_weight": 0}
_STATIC: Settings = {
    "encoder": "static",
    "encoder.sequence_length": 96,
    "encoder.question_length": 32,
    "loss.temperature": 0.05,
    "train.batch_size": 256,
    "train.learning_rate": 0.01,
}
_LABELS_OF_STATIC: Settings = {
    "loss.temperature": 0.05,
    "train.batch_size": 256,
    "train.learning_rate": 0.01,
    "train.num_train_epochs": 4,
}


class Study:
    """The runs of one seed, in a folder. What a method trains it returns, judged on each set."""

    def __init__(self, out: Path, seed: int, part: str, transformer: Settings) -> None:
        self.out, self.seed, self.part = out, seed, part
        self.labels, self.corpus = out / "labels.jsonl", f"[{{file: {out / 'corpus.jsonl'}, pairs: mixed}}]"
        self.transformer = self.train(
            "transformer", self.labels, {**transformer, "encoder.pretrained_model_cfg": out / "encoder"}
        )

    def tables(self) -> Iterator[tuple[str, Path, Path]]:
        """Of each line of the first table its name, the model of questions and that of passages."""
        whole = self.transformer
        begun = {"model_file": whole, "encoder.static_questions": "true", **_TABLE}
        taught = {**begun, **_VECTORS, "loss.teacher": whole}
        yield "the transformer", whole, whole
        untrained = {**begun, "train.max_steps": 1, "train.learning_rate": 0, "train.warmup_steps": 0}
        yield "table, untrained", self.train("table_untrained", self.labels, untrained), whole
        labels = {**_CROPPED, "train.num_train_epochs": 2}
        yield "table, the labels", self.train("table_labels", self.labels, begun | labels), whole
        table = self.train("table_vectors", self.corpus, {**taught, "train.num_train_epochs": 4})
        yield "table, the vectors of pseudo-questions", table, whole
        further = {**_TABLE, **labels, "model_file": table, "train.learning_rate": 0.003}
        yield (
            "table, the same, then the labels",
            self.train("table_vectors_labels", self.labels, further),
            whole,
        )

    def students(self) -> Iterator[tuple[str, Path, Path]]:
        """Of each line of the second table the same."""
        yield "the transformer", self.transformer, self.transformer
        start = {**_STATIC, "encoder.pretrained_model_cfg": self.out / "static"}
        rows = {"encoder.pretrained_model_cfg": self.rows()}
        by_name: dict[str, tuple[str, str | Path, Settings]] = {
            "labels": ("the labels alone", self.labels, {**start, **_LABELS_OF_STATIC}),
            "pairs": ("pairs of the texts alone", self.corpus, {**start, "train.num_train_epochs": 8}),
        }
        taught = {
            **_STATIC,
            **_VECTORS,
            "encoder.pooling": "idf",
            "loss.teacher": self.transformer,
            "train.num_train_epochs": 3,
        }
        by_name["vectors"] = "the vectors of texts", self.corpus, {**taught, **rows}
        student = self.out / str(self.seed) / "static_vectors"
        further = {"model_file": student, **_LABELS_OF_STATIC}
        by_name["vectors_labels"] = "the vectors of texts, then the labels", self.labels, further
        for name, (shown, data, settings) in by_name.items():
            yield f"static encoder, {shown}", (model := self.train(f"static_{name}", data, settings)), model

    def train(self, name: str, data: str | Path, settings: Settings) -> Path:
        """The run folder, trained unless it is done; seconds of CPU are noted there."""
        run = self.out / str(self.seed) / name
        if not (done := run / "seconds.json").exists():
            given = {**_ALWAYS, **settings, "train_datasets": data, "output_dir": run, "seed": self.seed}
            cpu = time.process_time()
            dpr(done, "train", *(f"{key}={value}" for key, value in given.items()))
            done.write_text(json.dumps(time.process_time() - cpu), encoding="utf-8")
        return run

    def rows(self) -> Path:
        """A static encoder whose rows begin as the vectors that the transformer gives the tokens alone."""
        if not (made := self.out / str(self.seed) / "rows").exists():
            model = BiEncoder.load(self.transformer)
            model.use_static_questions()
            model.question_model.backbone.save_pretrained(str(made))
            model.tensorizer.save(made)
            shutil.copy(self.out / "encoder" / "token_frequencies.json", made)
        return made

    def judge(self, questions: Path, passages: Path) -> dict[str, Measured]:
        """The metric of each question of each set."""
        if (file := questions / f"figures.{self.part}.json").exists():
            return {
                name: Measured(found) for name, found in json.loads(file.read_text(encoding="utf-8")).items()
            }
        model, found = BiEncoder.load(questions), {}
        for name in SETS:
            folder = self.out / name / self.part
            ids, vectors = encoded(passages, folder / "corpus.jsonl")
            qrels = read_qrels(qrels_of(folder))
            asked = [
                question
                for question in read_questions(folder / "queries.jsonl")
                if qrels.get(str(question.id))
            ]
            scores = model.encode_questions([question.text for question in asked]) @ vectors.T
            best = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
            run = {
                str(asked[row].id): [(ids[hit], float(scores[row, hit])) for hit in hits]
                for row, hits in enumerate(best)
            }
            values = evaluate_questions(run, qrels, (DEPTH,))
            found[name] = Measured({METRIC: {question: each[METRIC] for question, each in values.items()}})
        file.write_text(
            json.dumps({name: asdict(each)["questions"] for name, each in found.items()}), encoding="utf-8"
        )
        return found


@cache
def encoded(model: Path, corpus: Path) -> tuple[list[str], np.ndarray]:
    """Ids and vectors of a corpus."""
    passages = list(read_passages(corpus))
    vectors = BiEncoder.load(model).encode_passages(
        [Passage(passage.text, passage.title) for passage in passages]
    )
    return [str(passage.id) for passage in passages], vectors


def prepare(data: Path, out: Path, *, labels: int, width: int) -> None:
    """The sets, ``labels`` rows of each labelled one, the texts without labels, and the encoders, unless they
    are there."""
    for name in SETS:
        write_set(name, data, out / name, dpr)
    if not (out / "corpus.jsonl").exists():
        rows = [row for name in LABELLED for row in _sample(out / name / "train.jsonl", labels)]
        (out / "labels.jsonl").write_text("".join(rows), encoding="utf-8")
        texts = dict.fromkeys(
            (each["title"], each["text"]) for row in rows for each in json.loads(row)["positive_ctxs"]
        )
        for name in SETS:
            corpus = read_passages(out / name / "test" / "corpus.jsonl")
            texts |= dict.fromkeys((passage.title, passage.text) for passage in corpus)
        lines = [
            json.dumps({"_id": str(row), "title": title, "text": text}) + "\n"
            for row, (title, text) in enumerate(texts)
        ]
        (out / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
    made, static = out / "encoder", out / "static"
    texts_of = (f"--corpus={out / 'corpus.jsonl'}", f"--hidden={width}")
    dpr(
        made,
        "new-encoder",
        *texts_of,
        f"--questions={out / 'labels.jsonl'}",
        "--vocab-size=12000",
        f"--out={made}",
        "--layers=1",
    )
    dpr(static, "new-encoder", *texts_of, f"--tokenizer={made}", f"--out={static}", "--layers=0")


def _sample(file: Path, size: int) -> list[str]:
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return random.Random(0).sample(lines, min(size, len(lines)))


def shown(lines: Mapping[str, Sequence[Mapping[str, Measured]]]) -> str:
    """Markdown: of each line, from its figures by seed, means over seeds with their range, and what the first
    line has less, with the 95 % interval over questions."""
    (first, *_), text = (
        lines.values(),
        ["| | " + " | ".join(SETS.values()) + " |", "|---" + "|---:" * len(SETS) + "|"],
    )
    for name, runs in lines.items():
        cells = []
        for each in SETS:
            ours, theirs = ([run[each] for run in side] for side in (runs, first))
            means = [float(per_question([run], METRIC).mean()) for run in ours]
            low, high = interval(difference := per_question(ours, METRIC) - per_question(theirs, METRIC))
            baseline_of = (
                f"; {difference.mean():+.3f} ({low:+.3f} to {high:+.3f})" if runs is not first else ""
            )
            cells.append(f"{statistics.mean(means):.3f} ({min(means):.3f} to {max(means):.3f}){baseline_of}")
        text.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def microseconds(models: Mapping[str, Path], questions: list[str], rounds: int = 5) -> str:
    """CPU time of a question, one after the other: its tower alone, and from text to vector."""
    lines = ["| | tower, µs | text to vector, µs |", "|---|---:|---:|"]
    times: dict[str, list[list[float]]] = {name: [[], []] for name in models}
    loaded = {name: BiEncoder.load(folder) for name, folder in models.items()}
    for _ in range(rounds):
        for name, model in loaded.items():
            batches = [TokenBatch.from_lists(model.tensorizer.question_tokens([text])) for text in questions]
            calls: list[tuple[Callable[[Any], Any], list[Any]]] = [
                (model.question_model, batches),
                (model.encode_questions, questions),
            ]
            for place, (encode, given) in enumerate(calls):
                begun = time.process_time()
                with torch.no_grad():
                    for each in given:
                        encode(each)
                times[name][place].append((time.process_time() - begun) / len(questions) * 1e6)
    lines += [
        f"| {name} | " + " | ".join(f"{statistics.median(part):,.0f}" for part in parts) + " |"
        for name, parts in times.items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with squad/, medquad/ and cranfield/"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--labels", type=int, default=5000, help="of each labelled set")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument(
        "--part",
        choices=("dev", "test"),
        default="test",
        help="what is judged; settings were chosen on dev, with seed 0",
    )
    parser.add_argument("--kinds", nargs="+", choices=("tables", "students"), default=["tables", "students"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    prepare(given.data, given.out, labels=given.labels, width=given.width)
    studies = [Study(given.out, seed, given.part, _TRANSFORMER) for seed in given.seeds]
    for kind in given.kinds:
        lines: dict[str, list[dict[str, Measured]]] = {}
        for study in studies:
            for name, questions, passages in getattr(study, kind)():
                lines.setdefault(name, []).append(found := study.judge(questions, passages))
                means = (f"{each} {per_question([run], METRIC).mean():.3f}" for each, run in found.items())
                print(f"seed {study.seed}, {name}: {', '.join(means)}", flush=True)
        print(f"\n{shown(lines)}\n", flush=True)
    models = {
        "the transformer": studies[0].transformer,
        "table": given.out / str(given.seeds[0]) / "table_vectors",
    }
    if "tables" in given.kinds:
        asked = read_questions(given.out / "squad" / "test" / "queries.jsonl")
        print(microseconds(models, [question.text for question in asked][:200]), flush=True)


if __name__ == "__main__":
    main()
