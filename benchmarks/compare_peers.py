"""Whole trainings, by this toolkit's trainer and by sentence-transformers': speed, memory, and what the model
finds.

    python -m benchmarks.compare_peers --data ../shared/data --out runs/compare_peers

Both products are given the same texts (SQuAD), hard negatives (BM25's), first weights, order of rows,
batches, optimizer and schedule, and train with their own trainer, from the texts to one saved model. The
models are judged by one program, on questions about articles that training has not seen. Each training is a
process of its own; the sides take turns, so that a ratio is of neighbours. What is measured is kept in --out,
and the same command goes on after the last. ``--quick`` does all of it with a tiny encoder and few texts,
without dropout.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import median_and_range
from benchmarks.memory import Watch
from benchmarks.negatives_data import gzipped_rows
from benchmarks.page import Ratio
from benchmarks.study_table import Measured, interval, per_question
from benchmarks.workload import load_texts, write_encoder
from dpr import (
    BiEncoder,
    BiEncoderTrainer,
    EncoderSettings,
    EncoderShape,
    LossSettings,
    TowerOptions,
    TrainingSettings,
    new_encoder,
    open_training_set,
)
from dpr.core.records import Passage, Question, TrainingSample
from dpr.data.order import permutation
from dpr.formats.corpora import write_passages
from dpr.formats.metrics_files import read_metrics
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.training_files.dpr import write_training_set

METRIC, RIVAL = "mrr@10", "sentence-transformers"
SIDES = {
    "dpr": "dpr",
    "dpr_same_loss": "dpr, `loss.candidates=dpr`",
    "rival": RIVAL,
}
"""The second leaves the known positives of other questions among the negatives, as the rival's loss does."""


@dataclass(frozen=True)
class Case:
    """An encoder and its training. ``layers`` 0 is a static encoder."""

    name: str
    layers: int
    width: int
    length: int
    batch: int
    epochs: int
    rate: float
    rows: int
    temperature: float = 0.05
    dropout: float = 0.1


CASES = (
    Case("transformer", layers=2, width=128, length=256, batch=32, epochs=2, rate=1e-3, rows=1984),
    Case("static", layers=0, width=512, length=512, batch=256, epochs=10, rate=0.02, rows=3840, dropout=0.0),
)
QUICK = (
    Case("transformer", layers=1, width=64, length=32, batch=4, epochs=2, rate=1e-3, rows=24, dropout=0.0),
    Case("static", layers=0, width=64, length=512, batch=8, epochs=2, rate=0.02, rows=24, dropout=0.0),
)


def prepare(out: Path, data: Path | None) -> None:
    """``train.jsonl`` with BM25 negatives, ``texts.jsonl``, and ``test`` in BEIR's layout. Without ``data``,
    of a few texts."""
    if (out / "prepared").exists():
        return
    if data is None:
        texts = load_texts(48)
        pairs = list(zip(texts.questions, texts.passages, strict=True))
        train, test = pairs[:32], pairs[32:]
    else:
        train, test = (_pairs(data / "squad", kind) for kind in ("train", "dev"))
    (out / "test" / "qrels").mkdir(parents=True, exist_ok=True)
    texts_of_test = {
        text: f"p{number}" for number, text in enumerate(dict.fromkeys(passage for _, passage in test))
    }
    write_passages(
        out / "test" / "corpus.jsonl", [Passage(text, "", key) for text, key in texts_of_test.items()]
    )
    write_questions(
        out / "test" / "queries.jsonl",
        [Question(question, f"q{number}") for number, (question, _) in enumerate(test)],
    )
    write_qrels(
        out / "test" / "qrels" / "test.tsv",
        {f"q{row}": {texts_of_test[text]: 1} for row, (_, text) in enumerate(test)},
    )
    write_passages(
        out / "texts.jsonl",
        [Passage(text, "", str(row)) for row, text in enumerate(dict.fromkeys(text for _, text in train))],
    )
    write_training_set(
        out / "plain.jsonl", [TrainingSample(question, (Passage(passage),)) for question, passage in train]
    )
    dpr("mine", out / "plain.jsonl", f"out={out / 'train.jsonl'}", "per_question=1", "overwrite=true")
    (out / "prepared").touch()


def _pairs(folder: Path, kind: str) -> list[tuple[str, str]]:
    """Questions with their paragraphs, of SQuAD as it is published (of train 800 paragraphs), or of a slice
    of train."""
    if kind == "train" and (slice_of_it := folder / "squad-v1.1-train.800-paragraphs.jsonl.gz").exists():
        paragraphs = list(gzipped_rows(slice_of_it))
    elif found := sorted(folder.glob(f"*{kind}*v1.1*.json")) or sorted(folder.glob(f"*{kind}*.json.gz")):
        opened = gzip.open if found[0].suffix == ".gz" else open
        with opened(found[0], "rt", encoding="utf-8") as file:
            paragraphs = [
                paragraph for article in json.load(file)["data"] for paragraph in article["paragraphs"]
            ]
    else:
        raise SystemExit(
            f"{folder}: no {kind}-v1.1.json; benchmarks/results/collections.md says where SQuAD is published"
        )
    kept = paragraphs[:800] if kind == "train" else paragraphs
    return [(asked["question"], paragraph["context"]) for paragraph in kept for asked in paragraph["qas"]]


def dpr(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "dpr", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def first_model(case: Case, out: Path) -> BiEncoder:
    """The same weights every time."""
    folder = out / f"{case.name}_encoder"
    if case.layers and not (folder / "model.safetensors").exists():
        write_encoder(folder, load_texts(8), layers=case.layers, width=case.width)
    elif not case.layers:
        new_encoder(folder, out / "texts.jsonl", shape=EncoderShape(num_layers=0, hidden_size=case.width))
    settings = EncoderSettings(
        pooling="mean", normalize=True, shared=True, sequence_length=case.length, plain_apostrophes=False
    )
    torch.manual_seed(0)
    return BiEncoder.from_pretrained(
        str(folder), settings, dropout=case.dropout, options=TowerOptions(temperature=case.temperature)
    )


def rows_of(case: Case, out: Path) -> list[dict[str, Any]]:
    """The rows that are trained on, spread over the file: whole batches of those that have a negative."""
    found = [
        row
        for line in (out / "train.jsonl").open(encoding="utf-8")
        if (row := json.loads(line))["hard_negative_ctxs"]
    ]
    return found[:: len(found) // case.rows][: case.rows]


def train_ours(
    case: Case, out: Path, run: Path, seed: int, *, same_loss: bool, log_every: int
) -> list[float]:
    """By ``BiEncoderTrainer``; returns the losses that were logged."""
    model, file = first_model(case, out), run / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows_of(case, out)), encoding="utf-8")
    loss = LossSettings(temperature=case.temperature, candidates="dpr" if same_loss else "distinct")
    trainer = BiEncoderTrainer(
        model,
        train_sets=[open_training_set([file], name="train")],
        output_dir=run / "model",
        batch_size=case.batch,
        num_train_epochs=case.epochs,
        learning_rate=case.rate,
        hard_negatives=1,
        warmup_steps=0,
        settings=TrainingSettings(seed=seed, loss=loss),
        log_batch_step=log_every,
        eval_per_epoch=0,  # one checkpoint, at the end, as the rival's
    )
    trainer.train()
    lines = map(json.loads, (run / "model" / "metrics.jsonl").open(encoding="utf-8"))
    return [line["train/loss"] for line in lines if "train/loss" in line]


def train_rival(case: Case, out: Path, run: Path, seed: int, *, log_every: int) -> list[float]:
    """By ``SentenceTransformerTrainer``, on rows that lie in our order, epoch after epoch; returns the losses
    that were logged."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
    from torch.utils.data import BatchSampler, SequentialSampler

    from dpr.export.sentence_transformers import to_sentence_transformer

    rows = rows_of(case, out)
    order = [int(row) for epoch in range(case.epochs) for row in permutation(len(rows), seed, epoch, 0)]
    columns = {
        "anchor": [rows[row]["question"] for row in order],
        "positive": [rows[row]["positive_ctxs"][0]["text"] for row in order],
        "negative": [rows[row]["hard_negative_ctxs"][0]["text"] for row in order],
    }
    first = first_model(case, out)
    if case.layers:
        model = to_sentence_transformer(first)
    else:  # it reads texts without [CLS] and [SEP]
        table = first.question_model.state_dict()["backbone.words.weight"].clone()
        words = StaticEmbedding(first.tensorizer.tokenizer, embedding_weights=table)
        model = SentenceTransformer(modules=[words, Normalize()], device="cpu")
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(run / "log"),
        num_train_epochs=1,
        per_device_train_batch_size=case.batch,
        learning_rate=case.rate,
        warmup_steps=0,
        lr_scheduler_type="linear",
        max_grad_norm=1.0,
        batch_sampler=lambda rows, batch_size, drop_last, **_: BatchSampler(
            SequentialSampler(rows), batch_size, drop_last
        ),
        logging_steps=log_every,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=seed,
    )
    loss = MultipleNegativesRankingLoss(model, scale=1 / case.temperature)
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_dict(columns), loss=loss
    )
    trainer.train()
    model.save(str(run / "model"))
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def one_training(case: Case, out: Path, run: Path, side: str, seed: int, *, log_every: int) -> None:
    """Trains in this process and writes what it took to ``run/took.json``; imports and the first model are
    not timed."""
    import sentence_transformers  # noqa: F401  on every side, so that none has it in its time or memory

    first_model(case, out)
    before = _cpu_seconds()
    with Watch(0.1, shared_once=True) as watch:
        start = time.perf_counter()
        if side == "rival":
            losses = train_rival(case, out, run, seed, log_every=log_every)
        else:
            losses = train_ours(case, out, run, seed, same_loss=side == "dpr_same_loss", log_every=log_every)
        seconds = time.perf_counter() - start
    rows = len(rows_of(case, out)) * case.epochs
    took = {
        "seconds": seconds,
        "cpu": _cpu_seconds() - before,
        "mb": watch.growth / 2**20,
        "rows": rows,
        "losses": losses,
    }
    (run / "took.json").write_text(json.dumps(took), encoding="utf-8")


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measured(case: Case, out: Path, side: str, seed: int, *, is_quick: bool) -> dict[str, Any]:
    """What a training took and found, made unless it is there."""
    run = out / case.name / f"{side}_{seed}"
    if not (run / "result.json").exists():
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
        what = ["--train", case.name, side, str(seed), *(["--quick"] if is_quick else [])]
        command = [sys.executable, "-m", "benchmarks.compare_peers", "--out", str(out), *what]
        # A cache of its own: no training finds the files parsed, or the texts tokenised, by the one before.
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"DPR_CACHE": str(run / "cache")}
        )
        result = json.loads((run / "took.json").read_text(encoding="utf-8")) | {
            "questions": values_of(run, out, run / "model")
        }
        (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
    found: dict[str, Any] = json.loads((run / "result.json").read_text(encoding="utf-8"))
    return found


def values_of(run: Path, out: Path, model: Path | None) -> dict[str, float]:
    """The metric of every test question, by a model or BM25; ``dpr evaluate`` opens the rival's models as
    well."""
    how = ["systems=[bm25]"] if model is None else ["systems=[dense]", f"model_file={model}", "no_cuda=true"]
    dpr("evaluate", f"set={out / 'test'}", f"output_dir={run / 'evaluation'}", *how)
    each = read_metrics(run / "evaluation" / "test" / f"{'bm25' if model is None else 'dense'}.json").each
    assert each is not None
    return each.judged(METRIC)


def section(case: Case, results: dict[str, list[dict[str, Any]]]) -> str:
    """The table of an encoder; ratios and differences are to sentence-transformers, ratios seed by seed."""
    competitors = results["rival"]
    reference = per_question([Measured({METRIC: one["questions"]}) for one in competitors], METRIC)
    lines = [
        (
            "| | questions/s | times as fast | CPU s | of its CPU | memory, MB | MRR@10 by seed | MRR@10 |"
            " difference |"
        ),
        "|---" + "|---:" * 8 + "|",
    ]
    for side, ones in results.items():
        rates = [one["rows"] / one["seconds"] for one in ones]
        ratios = [rival["seconds"] / one["seconds"] for one, rival in zip(ones, competitors, strict=True)]
        values = per_question([Measured({METRIC: one["questions"]}) for one in ones], METRIC)
        means = " ".join(f"{np.mean(list(one['questions'].values())):.3f}" for one in ones)
        low, high = interval(values - reference)
        is_rival = side == "rival"
        cells = [
            f"{SIDES[side]} {version(RIVAL)}" if is_rival else SIDES[side],
            f"{np.median(rates):,.0f}",
            "" if is_rival else Ratio.of(side, ratios).text,
            f"{np.median([one['cpu'] for one in ones]):,.0f}",
            (
                ""
                if is_rival
                else Ratio.of(
                    side, [one["cpu"] / rival["cpu"] for one, rival in zip(ones, competitors, strict=True)]
                ).text
            ),
            f"{median_and_range([one['mb'] for one in ones])[0]:,.0f}",
            means,
            f"{values.mean():.3f}",
            "" if is_rival else f"{(values - reference).mean():+.3f} ({low:+.3f} to {high:+.3f})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    shape = (
        f"a BERT of {case.layers} layers x {case.width}"
        if case.layers
        else f"a static encoder {case.width} wide"
    )
    rows = f"{competitors[0]['rows'] // case.epochs:,} rows, {case.epochs} epochs in batches of {case.batch}"
    what = (
        f"{shape}, random first weights; {rows}, up to {case.length} tokens, learning rate {case.rate:g},"
        f" dropout {case.dropout:g}"
    )
    return f"## {case.name.capitalize()}\n\n{what[0].upper()}{what[1:]}.\n\n" + "\n".join(lines)


def compare(cases: Sequence[Case], out: Path, seeds: int, *, is_quick: bool) -> None:
    words = list(values_of(out / "bm25", out, None).values())
    print(
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {torch.get_num_threads()} threads, load"
        f" {os.getloadavg()[0]:.1f}; torch {torch.__version__}, {RIVAL} {version(RIVAL)}; {seeds} seeds;"
        f" {datetime.date.today()}. BM25 on the same {len(words):,} test questions: MRR@10"
        f" {np.mean(words):.3f}."
    )
    for case in cases:
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for seed in range(seeds):
            for side in SIDES:
                found[side].append(measured(case, out, side, seed, is_quick=is_quick))
                print(
                    f"{case.name}, seed {seed}, {side}: {found[side][-1]['seconds']:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
        print(f"\n{section(case, found)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with squad/; not needed with --quick")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="see that it runs")
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=[case.name for case in CASES], help="one of the encoders")
    arguments = parser.parse_args()
    if arguments.data is None and not (arguments.quick or arguments.train):
        parser.error(
            "--data FOLDER is missing; benchmarks/results/collections.md says where SQuAD is published"
        )
    cases = [case for case in (QUICK if arguments.quick else CASES) if arguments.only in (None, case.name)]
    if arguments.train:
        name, side, seed = arguments.train
        case = next(case for case in cases if case.name == name)
        run = arguments.out / name / f"{side}_{seed}"
        one_training(case, arguments.out, run, side, int(seed), log_every=1 if arguments.quick else 50)
        return
    prepare(arguments.out, None if arguments.quick else arguments.data)
    compare(cases, arguments.out, arguments.seeds, is_quick=arguments.quick)


if __name__ == "__main__":
    main()
