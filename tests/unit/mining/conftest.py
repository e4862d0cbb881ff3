"""A small corpus with repeats, training data about it, and a model with random weights."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.records import Passage, TrainingSample
from dpr.formats.corpora import write_passages
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.registry import IndexTexts
from dpr.mining import blocks
from dpr.mining.blocks import run_job
from dpr.mining.negatives import Mining
from dpr.mining.search import DenseSearch, LexicalSearch, Search
from dpr.mining.settings import MiningSettings
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import durable_folder
from tests.helpers.processes import fork_server
from tests.helpers.tiny import WORDS, tiny_model


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (LexicalSearch, DenseSearch):
        monkeypatch.setattr(kind, "block_rows", 7)


@pytest.fixture(autouse=True)
def workers_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they get is pickled, as for those that are spawned."""
    monkeypatch.setattr(blocks, "get_context", lambda method: fork_server())


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    with durable_folder(folder / "checkpoint") as target:
        tiny_model(folder / "encoder", dtype=torch.float32).write_to(target)
    return folder / "checkpoint"


@pytest.fixture
def model(model_folder: Path) -> BiEncoder:
    return BiEncoder.load(model_folder)


def repeating_corpus(count: int = 120) -> list[Passage]:
    """Every sixth passage nearly repeats the one before it."""
    rng = random.Random(1)
    passages: list[Passage] = []
    for number in range(count):
        words = rng.choices(WORDS, k=14)
        if number % 6 == 5:
            words = [*passages[-1].text.split()[:-1], rng.choice(WORDS)]
        passages.append(Passage(" ".join(words), rng.choice(WORDS) if number % 3 else "", f"d{number}"))
    return passages


def repeating_samples(count: int = 40) -> list[TrainingSample]:
    """One or two positives each, some outside the corpus; some questions twice with other positives."""
    rng = random.Random(2)
    passages = repeating_corpus()
    samples = []
    for number in range(count):
        gold = passages[2 * number]
        positives = [Passage(gold.text, gold.title, gold.id if number % 2 else None)]
        if number % 5 == 0:
            positives.append(Passage(" ".join(rng.choices(WORDS, k=10)), "elsewhere"))
        if number % 7 == 0:
            positives = positives[1:] or [Passage(" ".join(rng.choices(WORDS, k=10)))]
        question = samples[-1].question if number % 8 == 7 else " ".join(rng.sample(gold.text.split(), 5))
        samples.append(
            TrainingSample(question, tuple(positives), answers=(rng.choice(WORDS),) if number % 3 else ())
        )
    return samples


def mine(
    train: TrainingSet,
    out: Path,
    settings: MiningSettings,
    *,
    search: Search | None = None,
    corpus: Path | None = None,
    keep_within: int = 0,
    processes: int = 1,
) -> dict[str, Any]:
    searches = [search or LexicalSearch()]
    job = Mining(train, out, searches, corpus, settings=settings, keep_within=keep_within)
    return run_job(job, processes=processes)


def bm25_of(passages: list[Passage]) -> Bm25Index:
    return Bm25Index.build(
        IndexTexts([str(one.id) for one in passages], [f"{one.title} {one.text}" for one in passages])
    )


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    write_passages(tmp_path / "corpus.tsv", repeating_corpus())
    return tmp_path / "corpus.tsv"


@pytest.fixture
def train(tmp_path: Path) -> TrainingSet:
    write_training_set(tmp_path / "train.jsonl", repeating_samples())
    return open_training_set(tmp_path / "train.jsonl", name="train")
