"""What ``benchmarks.memory`` measures: the data, and the work of each case. Importing this module imports all
that the work needs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizerFast  # type: ignore[attr-defined]  # noqa: F401

from dpr.core.distributed import current_ranks, process_group
from dpr.core.records import Passage
from dpr.data.collator import Collator
from dpr.data.loader import cut_into_batches
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from dpr.formats.training_sets import open_training_set
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import EncoderSettings
from dpr.storage.durable import durable_folder
from dpr.training.settings import TrainingSettings
from dpr.training.validations.dev_sets import AverageRankValidation

MEBI = 2**20


@dataclass(frozen=True)
class Sizes:
    """How much there is of everything."""

    training_bytes: int = 200_000_000
    negatives: int = 30  # of each kind and question of the training file: about the proportions of DPR's own
    questions: int = 2_000
    passages_per_question: int = 30
    corpora: tuple[int, ...] = (10_000, 100_000, 1_000_000)  # short passages to embed
    words: int = 100
    short_words: int = 15
    dimension: int = 768


SIZES = Sizes()
_VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{number}" for number in range(2000))]


def prepare(folder: Path, rng: random.Random) -> None:
    """Writes the files and the model that the cases read."""
    write_model(folder / "encoder", folder / "model", width=32, projection=SIZES.dimension)
    _write_training_file(folder / "train.json", rng)
    _write_dev_file(folder / "dev.jsonl", rng)


def prepare_corpora(folder: Path, rng: random.Random) -> None:
    """Writes the corpora and the model of the embedding cases."""
    write_model(folder / "encoder_64", folder / "model_64", width=64)
    for count in SIZES.corpora:
        rows = (Passage(_text(rng, SIZES.short_words), "", str(number)) for number in range(count))
        write_passages(folder / f"corpus_{count}.tsv", rows)


def _text(rng: random.Random, mean: int) -> str:
    return " ".join(rng.choices(_VOCABULARY[5:], k=max(3, round(rng.gauss(mean, mean / 4)))))


def _passages(rng: random.Random, count: int) -> list[dict[str, str]]:
    return [{"title": _text(rng, 3), "text": _text(rng, SIZES.words)} for _ in range(count)]


def _write_training_file(path: Path, rng: random.Random) -> None:
    """An array as the original's files are, indented, until it is large enough."""
    with open(path, "w", encoding="utf-8") as out:
        written, separator = 0, "["
        while written < SIZES.training_bytes:
            record = {
                "question": _text(rng, 10),
                "answers": [_text(rng, 2)],
                "positive_ctxs": _passages(rng, 1),
                "negative_ctxs": _passages(rng, SIZES.negatives),
                "hard_negative_ctxs": _passages(rng, SIZES.negatives),
            }
            written += out.write(separator + json.dumps(record, indent=4))
            separator = ","
        out.write("]\n")


def _write_dev_file(path: Path, rng: random.Random) -> None:
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(SIZES.questions):
            positive, *hard = _passages(rng, SIZES.passages_per_question)
            record = {
                "question": _text(rng, 10),
                "answers": [],
                "positive_ctxs": [positive],
                "hard_negative_ctxs": hard,
            }
            out.write(json.dumps(record) + "\n")


def write_model(encoder: Path, checkpoint: Path, *, width: int, projection: int = 0) -> None:
    encoder.mkdir()
    (encoder / "vocab.txt").write_text("\n".join(_VOCABULARY) + "\n", encoding="utf-8")
    BertConfig(
        vocab_size=len(_VOCABULARY),
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=2 * width,
    ).save_pretrained(str(encoder))
    torch.manual_seed(0)
    settings = EncoderSettings(projection_dim=projection, shared=True)
    model = BiEncoder.from_pretrained(str(encoder), settings, pretrained=False)
    with durable_folder(checkpoint) as temporary:
        model.write_to(temporary)


def _open(folder: Path, name: str) -> Any:
    return open_training_set(folder / name, name="set")


def conversion(folder: Path, name: str = "train.json") -> None:
    """The first opening; the cache folder is left for the cases that follow."""
    _open(folder, name)


def reading(folder: Path) -> None:
    """One epoch of this rank's batches, from the file that was converted before."""
    with process_group("cpu"):
        collator = Collator(Tensorizer.load(folder / "encoder", sequence_length=256), num_hard=1, num_other=1)
        global_batches = cut_into_batches(
            [(_open(folder, "train.json"), DataSetSettings())],
            collator,
            global_batch_size=16,
            ranks=current_ranks(),
            seed=0,
        )
        for _ in _batches(global_batches):
            pass


def _batches(global_batches: Any) -> Iterator[Any]:
    return (global_batches[0, number] for number in range(global_batches.iterator.batches_per_epoch))


def average_rank(folder: Path) -> None:
    """The average rank as a validation computes it."""
    dev = (_open(folder, "dev.jsonl"), DataSetSettings())
    settings = TrainingSettings.of(
        None, val_av_rank_hard_neg=SIZES.passages_per_question - 1, val_av_rank_other_neg=0
    )
    figures = AverageRankValidation([dev], settings)(BiEncoder.load(folder / "model"))
    assert figures["eval/avg_rank"] > 0


def _embed(folder: Path, count: int) -> None:
    """As ``dpr embed`` does, with a CPU's token budget."""
    model, source = BiEncoder.load(folder / "model_64"), PassageSource(folder / f"corpus_{count}.tsv")
    embed_shard(model, source, EmbedConfig(out_file=str(folder / f"vectors_{count}"), batch_tokens=4096))


CASES: dict[str, Callable[[Path], None]] = {
    "conversion": conversion,
    "conversion_dev": lambda folder: conversion(folder, "dev.jsonl"),
    "reading": reading,
    "average_rank": average_rank,
    **{f"embed_{count}": partial(_embed, count=count) for count in SIZES.corpora},
}
