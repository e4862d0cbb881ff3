"""``python -m benchmarks.grouping``: pools of rows of similar length: tokens between ranks, padding, and the
padded path's speed.

The pools are those of an epoch, on one machine: of each, the tokens that every one of ``--ranks`` ranks would
compute are counted. Speed is that of rank 0's batches with towers that pad (encoder.packed=false) and with
packed ones, sides in turns. It is of the first ``--steps`` pools, which are longer or shorter than the mean
where they are grouped: compare it only with as many steps as an epoch has.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.workload import SHARED, load_texts, write_encoder
from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks
from dpr.core.records import Passage, TrainingSample
from dpr.data.collator import Collator
from dpr.data.loader import PoolDataset, cut_into_pools
from dpr.data.mixing import Sampling
from dpr.data.settings import DataSetSettings
from dpr.data.training_data import TrainingData
from dpr.losses.nll import BiEncoderNllLoss
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.encoder import EncoderSettings
from dpr.training.step import DirectStep

MEDQUAD = SHARED / "data" / "medquad" / "medquad.jsonl.gz"
SQUAD = SHARED / "data" / "squad" / "squad-v1.1-train.800-paragraphs.jsonl.gz"


class Rows(TrainingData):
    """Questions with their passage, and the passage of a row far away as hard negative."""

    def __init__(self, pairs: list[tuple[str, str]], name: str) -> None:
        self.pairs, self.name = pairs, name

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, row: int) -> TrainingSample:
        other = (row + len(self) // 2) % len(self)
        return TrainingSample(
            self.pairs[row][0],
            (Passage(self.pairs[row][1], id=str(row)),),
            (Passage(self.pairs[other][1], id=str(other)),),
        )


def load_sets() -> list[Rows]:
    """Those of SQuAD (paragraphs of similar length) and MedQuAD (answers of any length) that are at hand;
    else made-up texts."""
    found = []
    for name, file in (("SQuAD", SQUAD), ("MedQuAD", MEDQUAD)):
        if file.is_file():
            with gzip.open(file, "rt", encoding="utf-8") as lines:
                rows = [json.loads(line) for line in lines]
            pairs = (
                [(ask["question"], row["context"]) for row in rows for ask in row["qas"]]
                if "qas" in rows[0]
                else [(row["question"], row["answer"]) for row in rows if row["answer"]]
            )
            found.append(Rows(pairs, name))
    texts = load_texts(4000)
    return found or [Rows(list(zip(texts.questions, texts.passages, strict=True)), texts.source)]


def pools(
    data: Rows, model: BiEncoder, arguments: argparse.Namespace, *, rank: int, grouped: bool
) -> PoolDataset:
    collator = Collator(model.tensorizer, num_hard=1, num_other=0, seed=0)
    sampling = Sampling(group_by_length=grouped)
    ranks = Ranks(rank=rank, world_size=arguments.ranks)
    return cut_into_pools(
        [(data, DataSetSettings())],
        collator,
        global_batch_size=arguments.batch * arguments.ranks,
        ranks=ranks,
        seed=0,
        sampling=sampling,
    )


def count(
    data: Rows, model: BiEncoder, arguments: argparse.Namespace, *, grouped: bool
) -> tuple[float, float, float]:
    """Means over pools: most tokens of a rank over their mean, the same with padding, and the share of
    padding."""
    parts = [pools(data, model, arguments, rank=rank, grouped=grouped) for rank in range(arguments.ranks)]
    imbalance, padded_imbalance, padding = [], [], []
    for pool in range(min(arguments.pools, parts[0].iterator.pools_per_epoch)):
        batches = [part[0, pool] for part in parts]
        tokens = [batch.num_tokens for batch in batches]
        padded = [batch.questions.padded_size + batch.contexts.padded_size for batch in batches]
        imbalance.append(max(tokens) / statistics.mean(tokens))
        padded_imbalance.append(max(padded) / statistics.mean(padded))
        padding.append(1 - sum(tokens) / sum(padded))
    return statistics.mean(imbalance), statistics.mean(padded_imbalance), statistics.mean(padding)


def speed(data: Rows, folder: Path, arguments: argparse.Namespace, *, packed: bool) -> dict[bool, float]:
    """Questions a second of the slowest rank's work, without and with grouping; medians of rounds in
    turns."""
    model = BiEncoder.from_pretrained(
        str(folder), EncoderSettings(shared=True), options=TowerOptions(packed=packed), dropout=0.0
    ).train()
    step = DirectStep(model, BiEncoderNllLoss(), ranks=Ranks(), device=torch.device("cpu"))
    rates: dict[bool, list[float]] = {False: [], True: []}
    work = {
        grouped: [
            pools(data, model, arguments, rank=0, grouped=grouped)[0, pool] for pool in range(arguments.steps)
        ]
        for grouped in rates
    }
    for _ in range(arguments.rounds):
        for grouped, batches in work.items():
            rates[grouped].append(sum(map(len, batches)) / timed(step, model, batches))
    return {grouped: statistics.median(values) for grouped, values in rates.items()}


def timed(step: DirectStep, model: BiEncoder, batches: list[BiEncoderBatch]) -> float:
    start = time.perf_counter()
    for batch in batches:
        model.zero_grad()
        step(batch, num_pools=1, is_last=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("ranks", 8),
        ("batch", 16),
        ("pools", 60),
        ("steps", 24),
        ("rounds", 3),
        ("layers", 2),
        ("width", 128),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(
        "| | tokens of the busiest rank / mean | the same, padded | padding | questions/s, padded |"
        " questions/s, packed |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "bert"
        write_encoder(folder, load_texts(400), layers=arguments.layers, width=arguments.width)
        model = BiEncoder.from_pretrained(str(folder), EncoderSettings(shared=True))
        for data in load_sets():
            rates = {packed: speed(data, folder, arguments, packed=packed) for packed in (False, True)}
            for grouped, name in ((False, "shuffled"), (True, "grouped by length")):
                tokens, padded, padding = count(data, model, arguments, grouped=grouped)
                row = (
                    f"| {data.name}, {len(data)} rows, {name} | {tokens:.3f} | {padded:.3f} | {padding:.0%} "
                )
                print(f"{row}| {rates[False][grouped]:.1f} | {rates[True][grouped]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
