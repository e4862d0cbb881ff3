"""``python -m benchmarks.token_store [--megabytes 2000]``: the input pipeline from a token store, on a
training file that is made here.

Every measurement runs in a process of its own. RssAnon is the growth of anonymous resident memory after all
imports: what a process owns, without the pages of mapped files, which the kernel takes back when memory is
short.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.workload import load_texts, write_encoder
from dpr.core.distributed import Ranks
from dpr.core.logs import configure_logging
from dpr.core.records import Passage, TrainingSample
from dpr.data.collator import Augmentation, Collator
from dpr.data.loader import GlobalBatchDataset, batch_loader, cut_into_batches
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.tokens import StoredTokens, open_tokens
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set

NAME, LENGTH, BATCH = "synthetic", 256, 96
OPTIONS = DataSetSettings()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--questions-per-passage", type=int, default=1, help="SQuAD has 5")
    parser.add_argument("--seconds", type=float, default=20, help="how long batches are counted")
    parser.add_argument(
        "--model-batches",
        type=float,
        default=4.3,
        help="batches a second that the model of the quickstart consumes",
    )
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--phase", choices=list(PHASES), default=None, help="used by the benchmark itself")
    arguments = parser.parse_args()
    if arguments.phase is not None:
        configure_logging()
        print(json.dumps(PHASES[arguments.phase](arguments)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        arguments.folder = Path(temporary)
        figures = {phase: run_phase(phase, arguments) for phase in PHASES}
        print(table(figures, arguments))


def run_phase(phase: str, arguments: argparse.Namespace) -> dict[str, Any]:
    options = [
        f"--{key.replace('_', '-')}={value}" for key, value in vars(arguments).items() if key != "phase"
    ]
    command = [sys.executable, "-m", "benchmarks.token_store", *options, f"--phase={phase}"]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "DPR_CACHE": str(arguments.folder / "cache")},
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{phase}: {figures}", file=sys.stderr, flush=True)
    return figures


def samples(megabytes: int, questions_per_passage: int) -> Iterator[TrainingSample]:
    """Questions with the passage that answers them and a hard negative: SQuAD's words, shuffled, in passages
    of 60 to 180 words."""
    rng, texts = random.Random(0), load_texts(128)
    words = [word for text in texts.passages for word in text.split()]
    size, number, before = 0, 0, Passage("a first passage", "Title", "p")
    while size < megabytes * 1_000_000:
        start, length = rng.randrange(len(words) - 200), rng.randrange(60, 180)
        text = " ".join([*words[start : start + length // 2], *rng.sample(words, length - length // 2)])
        passage = Passage(text, f"Title {number // 20}", f"p{number}")
        for _ in range(questions_per_passage):
            question = " ".join(rng.sample(words, 10))
            yield TrainingSample(question, (passage,), (before,))
            size += len(question) + len(text) + len(before.text) + 200
        before, number = passage, number + 1


def write(arguments: argparse.Namespace) -> dict[str, Any]:
    started = time.perf_counter()
    write_encoder(arguments.folder / "encoder", load_texts(128), layers=1, width=64)
    file = arguments.folder / "train.jsonl"
    write_training_set(file, samples(arguments.megabytes, arguments.questions_per_passage))
    return {"seconds": time.perf_counter() - started, "bytes": file.stat().st_size}


def parse(arguments: argparse.Namespace) -> dict[str, Any]:
    before, started = rss_anon(), time.perf_counter()
    text = open_text(arguments)
    return {"seconds": time.perf_counter() - started, "rows": len(text), "rss_anon_mb": rss_anon() - before}


def build(arguments: argparse.Namespace) -> dict[str, Any]:
    started = time.perf_counter()
    open_tokens(open_text(arguments), open_tensorizer(arguments), OPTIONS)
    folder = next(path for path in (arguments.folder / "cache").glob("tokens-*") if path.is_dir())
    return {
        "seconds": time.perf_counter() - started,
        "bytes": sum(path.stat().st_size for path in folder.rglob("*.npy")),
    }


def from_store(arguments: argparse.Namespace) -> dict[str, Any]:
    return _reading(arguments, open_stored)


def from_text(arguments: argparse.Namespace) -> dict[str, Any]:
    return _reading(arguments, lambda arguments, tensorizer: open_text(arguments))


def _reading(arguments: argparse.Namespace, open_source: Callable[..., Any]) -> dict[str, Any]:
    """One process that collates by itself, then a training process with one worker, both over epochs of
    random order."""
    tensorizer = open_tensorizer(arguments)
    before, started = rss_anon(), time.perf_counter()
    dataset = global_batches(open_source(arguments, tensorizer), tensorizer)
    first_batch = dataset[0, 0]
    figures: dict[str, Any] = {"first_batch_s": time.perf_counter() - started, "questions": len(first_batch)}
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < arguments.seconds:
        dataset[divmod(count, dataset.iterator.batches_per_epoch)]
        count += 1
    figures |= {"batches_per_s": count / elapsed, "rss_anon_mb": rss_anon() - before}
    order = map(divmod, itertools.count(), itertools.repeat(dataset.iterator.batches_per_epoch))
    batches = iter(batch_loader(dataset, order))
    next(batches)
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < arguments.seconds:
        next(batches)
        count += 1
    figures |= {"worker_batches_per_s": count / elapsed, "main_rss_anon_mb": rss_anon() - before}
    return figures


PHASES = {"write": write, "parse": parse, "build": build, "from_store": from_store, "from_text": from_text}


def global_batches(source: TrainingSet | StoredTokens, tensorizer: Tensorizer) -> GlobalBatchDataset:
    """The batches of the quickstart: 96 questions, no hard negatives, windows of 48 tokens, a tenth
    masked."""
    augmentation = Augmentation(crop_tokens=48, mask_probability=0.1)
    collator = Collator(tensorizer, num_hard=0, num_other=0, seed=1, augmentation=augmentation)
    return cut_into_batches([(source, OPTIONS)], collator, global_batch_size=BATCH, ranks=Ranks(), seed=1)


def open_text(arguments: argparse.Namespace) -> TrainingSet:
    return open_training_set(arguments.folder / "train.jsonl", name=NAME)


def open_stored(arguments: argparse.Namespace, tensorizer: Tensorizer) -> StoredTokens:
    opened = open_tokens(open_text(arguments), tensorizer, OPTIONS, build=False)
    if not isinstance(opened, StoredTokens):
        raise SystemExit("the store was not built")
    return opened


def open_tensorizer(arguments: argparse.Namespace) -> Tensorizer:
    torch.set_num_threads(1)
    return Tensorizer.load(arguments.folder / "encoder", sequence_length=LENGTH)


def rss_anon() -> float:
    """Anonymous resident memory of this process in MB (10^6 bytes)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("RssAnon"))


def table(figures: dict[str, dict[str, Any]], arguments: argparse.Namespace) -> str:
    parsed, built = figures["parse"], figures["build"]
    text = figures["write"]["bytes"] / 1e6
    lines = [
        (
            f"{text:,.0f} MB of JSON lines, {parsed['rows']:,} rows, {arguments.questions_per_passage}"
            f" questions per passage; parsed in {parsed['seconds']:.0f} s, tokenised by"
            f" {len(os.sched_getaffinity(0))} processes in {built['seconds']:.0f} s, store"
            f" {built['bytes'] / 1e6:,.0f} MB."
        ),
        "",
        "| batches of 96, as in the quickstart | from the store | from the text |",
        "|---|---:|---:|",
    ]
    rows = {
        "first batch after opening (s)": ("first_batch_s", ".2f"),
        "batches/s, one process": ("batches_per_s", ".0f"),
        "batches/s, training process with one worker": ("worker_batches_per_s", ".0f"),
        "growth of RssAnon, process that collates (MB)": ("rss_anon_mb", ".0f"),
        "growth of RssAnon, with a worker beside it (MB)": ("main_rss_anon_mb", ".0f"),
    }
    for label, (key, form) in rows.items():
        lines.append(
            f"| {label} | {figures['from_store'][key]:{form}} | {figures['from_text'][key]:{form}} |"
        )
    ratio = figures["from_store"]["worker_batches_per_s"] / arguments.model_batches
    lines.append(
        f"| times what the quickstart's model consumes ({arguments.model_batches:g} batches/s) |"
        f" {ratio:.0f} | |"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
