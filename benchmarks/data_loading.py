"""The input pipeline from a token store against a plain DataLoader that tokenises with Hugging Face's fast
tokenizer on the fly.

Both give the same batches: questions, their passages and one hard negative each, cut at 256 tokens, in random
order.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks import token_store
from benchmarks.page import Ratio, Section
from dpr.core.distributed import Ranks
from dpr.core.logs import configure_logging
from dpr.data.collator import Collator
from dpr.data.loader import batch_loader, cut_into_batches
from dpr.data.tokens import open_tokens

BATCH, LENGTH, MEGABYTES = 32, 256, 40
SECONDS = 2.5
PLAIN = "plain DataLoader, fast tokenizer"


def section(rounds: int) -> Section:
    """Batches a second that one process, and a training process with workers, can take; with 1 and with 2
    workers."""
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "benchmarks.data_loading", temporary, str(rounds)]
        # The tokenizer then uses all cores where there is no worker, and one in each worker, as it does by
        # itself.
        inherited = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
        environment = {**inherited, "DPR_CACHE": f"{temporary}/cache", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    found = json.loads(done.stdout.splitlines()[-1])
    lines = [
        "| batches/s | from the token store | plain DataLoader | ours is faster by |",
        "|---|---:|---:|---:|",
    ]
    ratios = []
    for case, rates in found["rates"].items():
        pairs = [ours / theirs for ours, theirs in zip(rates["store"], rates["plain"], strict=True)]
        ratios.append(Ratio.of(f"{PLAIN}, {case}", pairs))
        lines.append(
            f"| {case} | {_middle(rates['store']):,.0f} | {_middle(rates['plain']):,.0f} |"
            f" {ratios[-1].text} |"
        )
    text = (
        f"{BATCH} questions, their passages and a hard negative each, truncated at {LENGTH} tokens, in random"
        f" order, from {found['megabytes']:.0f} MB of JSON lines ({found['rows']:,} rows of SQuAD's words)."
        " The plain side holds all rows in memory as Python objects, tokenises in its `collate_fn` and pads"
        f" to the longest; ours maps a token store, which took {found['building_s']:.0f} s to build, once,"
        " and also finds repeated passages and known positives. Larger files, memory and the way from the"
        " text: `python -m benchmarks.token_store`, [file formats](../../docs/file_formats.md)."
    )
    return Section("Data loading", "\n\n".join([text, "\n".join(lines)]), tuple(ratios))


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Rates of both sides by case, in turns."""
    configure_logging()
    arguments = Namespace(folder=folder, megabytes=MEGABYTES, questions_per_passage=1)
    written = token_store.write(arguments)
    tensorizer = token_store.open_tensorizer(arguments)
    start = time.perf_counter()
    open_tokens(token_store.open_text(arguments), tensorizer, token_store.OPTIONS)
    building = time.perf_counter() - start
    source = token_store.open_stored(arguments, tensorizer)
    collator = Collator(tensorizer, num_hard=1, num_other=0, seed=1)
    dataset = cut_into_batches(
        [(source, token_store.OPTIONS)], collator, global_batch_size=BATCH, ranks=Ranks(), seed=1
    )
    global_batches = dataset.iterator.batches_per_epoch
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    plain = Plain(rows, tensorizer.tokenizer)
    rates: dict[str, dict[str, list[float]]] = {}
    for case, workers in (("no worker", 0), ("one worker", 1), ("two workers", 2)):
        own = rates.setdefault(case, {"store": [], "plain": []})
        for _ in range(rounds):
            order = map(divmod, itertools.count(), itertools.repeat(global_batches))
            own["store"].append(_rate(batch_loader(dataset, order, num_workers=workers)))
            own["plain"].append(_rate(plain.loader(workers)))
    return {"rates": rates, "rows": len(rows), "megabytes": written["bytes"] / 1e6, "building_s": building}


class Plain:
    """What one writes without a toolkit: rows in memory, tokenised as they are asked for, every column padded
    to its longest."""

    def __init__(self, rows: list[dict[str, Any]], tokenizer: Any) -> None:
        self.rows, self.tokenizer = rows, tokenizer

    def loader(self, workers: int) -> DataLoader[Any]:
        return DataLoader(
            self.rows,  # type: ignore[arg-type]
            batch_size=BATCH,
            sampler=_Forever(len(self.rows)),
            collate_fn=self.collate,
            num_workers=workers,
            prefetch_factor=4 if workers else None,
        )

    def collate(self, rows: list[dict[str, Any]]) -> list[Any]:
        """Features of questions, and of positives followed by negatives."""
        questions = [row["question"] for row in rows]
        passages = [row[key][0] for key in ("positive_ctxs", "hard_negative_ctxs") for row in rows]
        keywords: dict[str, Any] = {
            "truncation": True,
            "max_length": LENGTH,
            "padding": "longest",
            "return_tensors": "pt",
        }
        return [
            dict(self.tokenizer(questions, **keywords)),
            dict(
                self.tokenizer(
                    [one["title"] for one in passages], [one["text"] for one in passages], **keywords
                )
            ),
        ]


class _Forever(torch.utils.data.Sampler[int]):
    """Random rows, epoch after epoch."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(0)
        while True:
            yield from rng.sample(range(self._count), self._count)


def _rate(loader: DataLoader[Any]) -> float:
    """Batches a second over some seconds, after those that were made before anyone waited for them."""
    batches = iter(loader)
    for _ in range(10):
        next(batches)
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < SECONDS:
        next(batches)
        count += 1
    return count / elapsed


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))
