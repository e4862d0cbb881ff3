"""``python -m benchmarks.curves``: one small model trained in every way that promises the same training; how
far the curves lie apart.

The slow truth pads, reads the text, holds every score and runs in one process. A case changes settings and
says what it promises of
another: the same bits, the same up to rounding, or, where dropout draws other masks, the same but for chance.
Chance is what three runs of the slow truth differ by whose masks alone differ; rounding is what one path
itself differs by in single and in double precision.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.workload import SHARED, load_texts
from dpr.core.distributed import current_ranks, process_group
from dpr.core.records import Passage, TrainingSample
from dpr.formats.corpora import write_passages
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from dpr.jobs.train import build_model, open_sets
from dpr.losses.nll import BiEncoderNllLoss
from dpr.preparation.document_questions import TRAIN, split_by_group
from dpr.preparation.new_encoder import EncoderShape, new_encoder
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.command_settings import TrainCommand
from dpr.training.data_sets import resolve_training_files
from dpr.training.run import Run
from dpr.training.validations.protocol import Metrics, run_validations

SQUAD = SHARED / "data" / "squad" / "squad-v1.1-dev.shared-half.json.gz"
NUM_DEV, BATCH, LENGTH, VOCABULARY = 400, 32, 24, 4000
FIGURES = ("eval/nll_loss", "eval/avg_rank", "eval/in_batch_acc")
SAME_BITS, ROUNDING, CHANCE, HALF, NONE = "bits", "rounding", "chance", "8 bits", ""
SLACK = 10
"""How many times the rounding of the slow truth another way of summing may differ: both grow with the steps,
from other seeds."""
HALF_TOLERANCE = 0.1
DOUBLE_OVER_SINGLE = 2.0**-29


@dataclass(frozen=True)
class Case:
    """A training: ``changes`` of settings, named as on the command line, and what it ``promises`` of case
    ``like``.

    ``max_scores`` is of the loss (0: the default), ``masks`` another seed of dropout alone.
    """

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    promises: str = ROUNDING
    like: str = "padded"
    seed: int = 0
    masks: int = 0
    max_scores: int = 0
    double: bool = False
    processes: int = 1


class Curve(NamedTuple):
    """Losses of all steps, and the metrics of the dev set after the last."""

    losses: list[float]
    figures: Metrics


class Difference(NamedTuple):
    """Relative to the partner's loss: the largest of all steps, and the mean with its sign."""

    largest: float
    mean: float


PADDED: dict[str, Any] = {"encoder.packed": False, "train.token_store": "off"}
CACHED: dict[str, Any] = {"train.grad_cache_tokens": 500}
BLOCK = 500


def cases(dropout: float) -> list[Case]:
    """The slow truth first, what it is measured by, then all that promise something."""
    masks, other = (CHANCE, "masks") if dropout else (ROUNDING, "seed")
    again: tuple[Any, ...] = (1, 2)
    found = [
        Case("padded", PADDED, NONE),
        *(Case(f"padded, {other} {number}", PADDED, NONE, **{other: number}) for number in again),
        Case("packed", promises=masks),
        Case("packed, loss in blocks", like="packed", max_scores=BLOCK),
        Case("packed, gradient caching", CACHED, masks),
        Case("packed, 2 processes", promises=masks, processes=2),
        Case("packed, bf16", {"train.precision": "bf16"}, CHANCE if dropout else HALF),
    ]
    if dropout:
        return [
            *found,
            # torch's masks may depend on the precision
            Case("packed, float64", promises=NONE, like="packed", double=True),
            Case(
                "packed, text, worker process",
                {"train.token_store": "off", "train.num_workers": 1},
                SAME_BITS,
                "packed",
            ),
            Case(
                "packed, gradient checkpointing", {"train.gradient_checkpointing": True}, SAME_BITS, "packed"
            ),
        ]
    return [
        *found,
        Case("padded, float64", PADDED, NONE, double=True),
        Case("packed, float64", like="padded, float64", double=True),
        Case(
            "all of it, float64", CACHED, like="padded, float64", double=True, max_scores=BLOCK, processes=2
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--data",
        type=Path,
        default=SQUAD,
        help="training data that dpr train reads, with titles; else made-up words",
    )
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.0, 0.1])
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="write the tables to this Markdown file, and all curves beside it",
    )
    parser.add_argument("--worker", type=Path, default=None, help="used by the benchmark itself")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the same sums in every case, and two processes on two cores
    if arguments.worker is not None:
        work_on(arguments.worker)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["DPR_CACHE"] = str(folder / "cache")
        source = write_data(arguments.data, folder)
        parts, curves = [heading(arguments, source)], dict[float, dict[str, Curve]]()
        print(parts[0], flush=True)
        for dropout in arguments.dropout:
            curves[dropout] = {}
            for case in cases(dropout):
                curves[dropout][case.name] = trained(case, folder, arguments.steps, dropout)
                print(
                    f"{case.name}: {curves[dropout][case.name].losses[-1]:.6f}", file=sys.stderr, flush=True
                )
            parts.append(table(dropout, curves[dropout]))
            print("", parts[-1], sep="\n", flush=True)
    if arguments.out is not None:
        arguments.out.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        arguments.out.with_suffix(".json").write_text(json.dumps(curves), encoding="utf-8")
    if any(" NO " in part for part in parts):
        sys.exit("a promise does not hold")


def write_data(data: Path, folder: Path) -> str:
    """Train and dev set, from different articles, and the encoder; returns what all of it is made of."""
    samples, source = (read_rows(data), data.name) if data.is_file() else (made_up_rows(), "made-up words")
    split = split_by_group([sample.positives[0].title for sample in samples], {"dev": NUM_DEV}, seed=0)
    for name, purpose in ((TRAIN, "train"), ("dev", "validate")):
        rows = [sample for sample, part in zip(samples, split, strict=True) if part == name]
        write_training_set(folder / f"{name}.jsonl", rows)
        source += f", {len(rows)} questions to {purpose} on"
    texts = [text for sample in samples for text in (sample.question, sample.positives[0].text)]
    write_passages(folder / "texts.jsonl", (Passage(text, "", str(row)) for row, text in enumerate(texts)))
    new_encoder(
        folder / "encoder",
        folder / "texts.jsonl",
        shape=EncoderShape(num_layers=1, hidden_size=128, max_positions=64, vocab_size=VOCABULARY),
    )
    return source


def read_rows(data: Path) -> list[TrainingSample]:
    rows = open_training_set(data, name=data.stem)
    return [rows[number] for number in range(len(rows))]


def made_up_rows() -> list[TrainingSample]:
    texts = load_texts(4000)
    pairs = enumerate(zip(texts.questions, texts.passages, strict=True))
    return [
        TrainingSample(question, (Passage(text, f"article {number // 20}"),))
        for number, (question, text) in pairs
    ]


def trained(case: Case, folder: Path, steps: int, dropout: float) -> Curve:
    """The case's curve; in several processes where it takes them."""
    if case.processes == 1:
        return train(case, folder, steps, dropout)
    task, result = folder / "task.json", folder / "curve.json"
    task.write_text(json.dumps([case.__dict__, str(folder), steps, dropout, str(result)]), encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, *launcher, "-m", "benchmarks.curves", "--worker", str(task)],
        check=True,
        env=environment,
    )
    return Curve(*json.loads(result.read_text(encoding="utf-8")))


def work_on(task: Path) -> None:
    """What each process of a case with several does."""
    case, folder, steps, dropout, result = json.loads(task.read_text(encoding="utf-8"))
    with process_group("cpu"):
        curve = train(Case(**case), Path(folder), steps, dropout)
        if current_ranks().is_main:
            Path(result).write_text(json.dumps(curve), encoding="utf-8")


def train(case: Case, folder: Path, steps: int, dropout: float) -> Curve:
    config = config_of(case, folder, steps, dropout)
    torch.manual_seed(case.seed)
    model = build_model(config)
    if case.double:
        model.double()
    named = [resolve_training_files([str(folder / f"{name}.jsonl")], {}) for name in (TRAIN, "dev")]
    opened = [open_sets(sources, config) for sources in named]
    trainer = BiEncoderTrainer(model, *opened, output_dir=str(config.output_dir), settings=config)
    recorder = Recorder()
    trainer.callbacks.insert(0, recorder)
    assert isinstance(trainer.loss, BiEncoderNllLoss)
    trainer.loss.max_scores = case.max_scores or trainer.loss.max_scores
    trainer.settings.seed += case.masks  # the order was made with the seed; only dropout still asks for it
    trainer.train()
    figures = run_validations(trainer.validations, trainer.model)
    return Curve(recorder.losses, {name: figures[name] for name in FIGURES})


def config_of(case: Case, folder: Path, steps: int, dropout: float) -> TrainCommand:
    """The quickstart's settings, smaller."""
    output = (
        tempfile.mkdtemp(dir=folder)
        if current_ranks().world_size == 1
        else str(folder / f"{case.name} {dropout}")
    )
    config = TrainCommand(output_dir=output, seed=case.seed)
    settings = {
        "encoder.pretrained_model_cfg": str(folder / "encoder"),
        "encoder.pretrained": False,
        "encoder.shared": True,
        "encoder.pooling": "mean",
        "encoder.normalize": True,
        "encoder.sequence_length": LENGTH,
        "encoder.question_length": 16,
        "encoder.dropout": dropout,
        "loss.temperature": 0.07,
        "train.global_batch_size": BATCH,
        "train.dev_batch_size": BATCH,
        "train.max_steps": steps,
        "train.num_train_epochs": 10**6,
        "train.learning_rate": 1e-3,
        "train.embedding_lr_factor": 5.0,
        "train.warmup_steps": 20,
        "train.hard_negatives": 0,
        "train.log_batch_step": 1,
        "train.eval_per_epoch": 0,
        "train.num_workers": 0,
        **case.changes,
    }
    for name, value in settings.items():
        section, _, key = name.partition(".")
        assert hasattr(getattr(config, section), key), name
        setattr(getattr(config, section), key, value)
    config.check()
    return config


class Recorder(Callback):
    """The loss of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_log(self, run: Run, metrics: Metrics) -> None:
        self.losses.append(metrics["train/loss"])


def difference(curve: Curve, other: Curve) -> Difference:
    parts = [mine / theirs - 1 for mine, theirs in zip(curve.losses, other.losses, strict=True)]
    return Difference(max(map(abs, parts)), statistics.mean(parts))


def tolerances(curves: dict[str, Curve]) -> tuple[Difference, float]:
    """What chance does (the most of any two of three runs; nothing without dropout), and what rounding may do
    in single precision."""
    single = "padded" if "padded, float64" in curves else "packed"
    rounding = SLACK * difference(curves[single], curves[f"{single}, float64"]).largest
    runs = [curve for name, curve in curves.items() if name == "padded" or name.startswith("padded, masks")]
    found = [difference(*pair) for pair in combinations(runs, 2)]
    chance = (
        Difference(max(one.largest for one in found), max(abs(one.mean) for one in found))
        if found
        else Difference(0.0, 0.0)
    )
    return chance, rounding


def verdict(case: Case, curves: dict[str, Curve], chance: Difference, rounding: float) -> tuple[str, str]:
    """What was promised, in numbers, and whether it holds."""
    if case.promises == SAME_BITS:
        return "the same bits", _yes(curves[case.name] == curves[case.like])
    found = difference(curves[case.name], curves[case.like])
    if case.promises == CHANCE:
        largest, mean = 2 * chance.largest, 2 * chance.mean
        return f"{largest:.1e}, mean {mean:.1e}", _yes(found.largest <= largest and abs(found.mean) <= mean)
    limit_of = {HALF: HALF_TOLERANCE, ROUNDING: rounding * (DOUBLE_OVER_SINGLE if case.double else 1)}
    if case.promises not in limit_of:
        return "", ""
    return f"{limit_of[case.promises]:.1e}", _yes(found.largest <= limit_of[case.promises])


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


def table(dropout: float, curves: dict[str, Curve]) -> str:
    chance, rounding = tolerances(curves)
    lines = [
        f"Dropout {dropout}:\n",
        (
            "| | compared with | largest difference | mean difference | promised at most | holds | dev NLL |"
            " average rank | top-1 |"
        ),
        "|---|---|---:|---:|---:|---|---:|---:|---:|",
    ]
    for case in cases(dropout):
        mine = curves[case.name]
        found = difference(mine, curves[case.like])
        promised, holds = verdict(case, curves, chance, rounding)
        shown = (
            ("", "", "")
            if case.name == case.like
            else (case.like, f"{found.largest:.1e}", f"{found.mean:+.1e}")
        )
        nll, rank, top = (mine.figures[name] for name in FIGURES)
        lines.append(
            f"| {' | '.join((case.name, *shown, promised, holds))} | {nll:.5f} | {rank:.3f} | {top:.4f} |"
        )
    losses = curves["padded"].losses
    first, last = losses[0], statistics.mean(losses[-20:])
    return "\n".join(
        [
            *lines,
            "",
            f"The loss of the reference falls from {first:.2f} to {last:.2f} (mean of the last 20 steps).",
        ]
    )


def heading(arguments: argparse.Namespace, source: str) -> str:
    return (
        f"BERT of 1 layer x 128 with {VOCABULARY} pieces from random weights, one tower for both sides, mean"
        f" pooling, vectors of length 1, temperature 0.07, {arguments.steps} steps of {BATCH} questions,"
        f" passages cut at {LENGTH} tokens; {source}. {platform.machine()} CPU, 1 thread, torch"
        f" {torch.__version__}, transformers {version('transformers')}, {datetime.date.today()}. Command:"
        f" `python -m benchmarks.curves --steps {arguments.steps}`."
    )


if __name__ == "__main__":
    main()
