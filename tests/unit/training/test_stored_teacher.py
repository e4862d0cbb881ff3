"""Stored vectors as a teacher: of passages, by their ids, whatever model made them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import CheckpointError, ConfigError, InputError
from dpr.core.records import Passage
from dpr.data.tokens import StoredTokens
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from dpr.formats.vector_shards import VectorShardWriter
from dpr.models.biencoder import TowerOptions
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.make_loss import make_loss
from dpr.training.settings import LossSettings, TrainingSettings
from tests.helpers.tiny import make_samples, static_folder, tiny_model
from tests.helpers.training import make_trainer

WIDTH = 6
CORPUS: dict[Passage, str] = {}
"""The ids of all passages that samples name."""


def with_id(passage: Passage) -> Passage:
    return replace(passage, id=CORPUS.setdefault(replace(passage, id=None), f"d{len(CORPUS)}"))


SAMPLES = [
    replace(
        sample,
        **{
            name: tuple(map(with_id, getattr(sample, name)))
            for name in ("positives", "hard_negatives", "other_negatives")
        },
    )
    for sample in make_samples(24, num_passages=12)
]
PASSAGES, IDS = list(CORPUS), list(CORPUS.values())


def vectors_of(seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(len(IDS), WIDTH)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_shards(folder: Path, name: str, vectors: np.ndarray, *, without: int = 0) -> str:
    """Two shards; returns their pattern."""
    last = len(vectors) - without
    for number, rows in enumerate((range(5), range(5, last))):
        metadata = {"shard_id": number, "num_shards": 2, "model_fingerprint": name}
        writer = VectorShardWriter(folder / f"{name}_{number}", metadata=metadata, dimension=vectors.shape[1])
        writer.write_chunk(0, [IDS[row] for row in rows], vectors[rows.start : rows.stop])
        writer.finish(1)
    return str(folder / f"{name}_*")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    write_training_set(tmp_path / "train.jsonl", SAMPLES)
    write_shards(tmp_path, "stored", vectors_of(0))
    return tmp_path


def job(
    folder: Path,
    out: str,
    teacher: Any = "stored_*",
    *,
    encoder: Any = (),
    options: Any = None,
    **of_run: Any,
) -> BiEncoderTrainer:
    """A static encoder whose towers are separate: that of questions has nothing to learn."""
    settings = {"pooling": "mean", "normalize": True, "projection_dim": WIDTH, **dict(encoder)}
    model = tiny_model(
        static_folder(folder / "static"), dtype=torch.float32, options=options, dropout=0.0, **settings
    )
    given = [str(folder / each) for each in teacher] if isinstance(teacher, list) else str(folder / teacher)
    how = {"learning_rate": 0.1, "num_train_epochs": 8, "hard_negatives": 1, **of_run}
    loss = TrainingSettings(loss=LossSettings(nll_weight=0.0, teacher=given))
    train = open_training_set(folder / "train.jsonl", name="mine")
    return make_trainer(model, [train], [], folder / out, settings=loss, **how)


@pytest.mark.parametrize(
    "how", [{}, {"token_store": "off"}, {"grad_cache_tokens": 40}], ids=["stored tokens", "text", "cached"]
)
def test_passages_learn_the_vectors_of_their_ids_and_questions_stay(
    folder: Path, how: dict[str, Any]
) -> None:
    run = job(folder, "run", **how)
    assert isinstance(run.plan.dataset.sources[0], StoredTokens) == (how.get("token_store") != "off")
    before, questions = run.model.encode_passages(PASSAGES), run.model.encode_questions(["ba be", "bo"])
    run.train()
    after, wanted = run.model.encode_passages(PASSAGES), vectors_of(0)
    assert ((after * wanted).sum(1) > (before * wanted).sum(1) + 0.1).mean() > 0.9
    assert (after * wanted).sum(1).mean() > 0.9
    assert np.array_equal(run.model.encode_questions(["ba be", "bo"]), questions)


def test_a_run_needs_the_vectors_it_began_with_wherever_they_lie(folder: Path) -> None:
    job(folder, "run").train()
    write_shards(folder, "copy", vectors_of(0))
    assert job(folder, "run", ["copy_0", "copy_1"]).resume().step > 0
    write_shards(folder, "other", vectors_of(1))
    with pytest.raises(CheckpointError, match=r"different run: loss\.teacher\.content was"):
        job(folder, "run", "other_*").resume()


def test_vectors_that_changed_since_they_were_written_are_refused_at_every_start(folder: Path) -> None:
    loss = LossSettings(guide=[str(folder / "stored_*")])
    make_loss(loss, candidates="distinct", namespaces=["mine"])
    file = folder / "stored_1" / "vectors-00000.npy"
    before, content = file.stat(), bytearray(file.read_bytes())
    content[-1] ^= 0x80
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match=r"stored_1: vectors-00000\.npy: content has changed"):
        make_loss(loss, candidates="distinct", namespaces=["mine"])


def test_a_passage_without_a_vector_is_named(folder: Path) -> None:
    write_shards(folder, "fewer", vectors_of(0), without=1)
    run = job(folder, "run", "fewer_*", token_store="off")
    with pytest.raises(
        InputError, match=r"mine: row \d+: the passage drawn for slot [01] has no vector"
    ) as caught:
        run.train()
    row, slot = (int(word.strip(":")) for word in str(caught.value).split() if word.strip(":").isdigit())
    sample = SAMPLES[row]
    listed = sample.hard_negatives or sample.other_negatives
    assert IDS[-1] in [passage.id for passage in (listed if slot else sample.positives)]


@pytest.mark.parametrize(
    ("vectors", "how", "message"),
    [
        (
            vectors_of(0)[:, :4],
            {},
            r"names vectors of 4 dimensions, but the model's have 6; set encoder\.projection_dim=4",
        ),
        (
            3 * vectors_of(0),
            {},
            r"names vectors of length 3, which the model never has; set encoder\.normalize=false",
        ),
        (
            vectors_of(0),
            {"options": TowerOptions(fix_ctx_encoder=True)},
            r"does not learn with encoder\.fix_ctx_encoder=true",
        ),
    ],
)
def test_what_no_passage_could_learn_is_refused(
    folder: Path, vectors: np.ndarray, how: dict[str, Any], message: str
) -> None:
    write_shards(folder, "wrong", vectors)
    with pytest.raises(ConfigError, match=message):
        job(folder, "run", "wrong_*", **how)


def test_missing_shards_are_refused_and_longer_vectors_are_learned_where_lengths_are_free(
    folder: Path,
) -> None:
    with pytest.raises(InputError, match="no vectors found"):
        job(folder, "run", "nowhere_*")
    write_shards(folder, "long", 3 * vectors_of(0))
    job(folder, "run", "long_*", encoder={"normalize": False})
    with pytest.raises(ConfigError, match="needs the model that learns"):
        make_loss(LossSettings(teacher=str(folder / "long_*")), candidates="distinct")
