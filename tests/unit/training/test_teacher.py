"""Vectors of a teacher, a model or stored ones, are learned, and refused where they could never be reached."""

import json
import os
from collections import Counter
from dataclasses import replace
from functools import partial
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
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.make_loss import make_loss
from dpr.training.settings import LossSettings, TrainingSettings
from dpr.training.teacher import ModelTeacher
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, static_folder, tiny_model
from tests.helpers.training import StopAfter, assert_near, assert_same_bits, make_trainer

TEXTS = ["ba be bi", "bo bu", "ke ke ra"]
STUDENT: dict[str, Any] = {"static_questions": True, "pooling": "mean", "normalize": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    for name, seed in (("teacher", 9), ("other", 8)):
        model = tiny_model(
            encoder_folder(folder / "encoder"), seed=seed, dtype=torch.float32, pooling="mean", normalize=True
        )
        model.save(folder / name)
    return folder


def job(
    folder: Path,
    out: str,
    *callbacks: Callback,
    teacher: str = "teacher",
    dropout: float = 0.1,
    fix_ctx_encoder: bool = True,
    **others: Any,
) -> BiEncoderTrainer:
    options = TowerOptions(fix_ctx_encoder=fix_ctx_encoder)
    model = tiny_model(folder / "encoder", dtype=torch.float32, dropout=dropout, options=options, **STUDENT)
    settings = TrainingSettings(loss=LossSettings(nll_weight=0.0, teacher=str(folder / teacher)))
    how: dict[str, Any] = {"learning_rate": 0.1, "num_train_epochs": 8, "hard_negatives": 0, **others}
    sets = [ListSource(make_samples(24))], []
    return make_trainer(model, *sets, folder / out, *callbacks, settings=settings, **how)


def distance(folder: Path, model: BiEncoder) -> float:
    taught = BiEncoder.load(folder / "teacher").encode_questions(TEXTS)
    return float(np.square(model.encode_questions(TEXTS) - taught).sum(1).mean())


def test_a_table_learns_the_vectors_of_questions_and_passages_stay(folder: Path) -> None:
    run = job(folder, "learned")
    before, passages = distance(folder, run.model), run.model.encode_passages(TEXTS)
    run.train()
    assert distance(folder, run.model) < 0.5 * before
    assert np.array_equal(run.model.encode_passages(TEXTS), passages)


class Watching(Callback):
    """Reads the vectors of passages, which are encoded for it."""

    def on_global_batch(self, run: Any, questions: torch.Tensor, global_batch: Any, batch: Any) -> None:
        self.num_distinct = len(global_batch.contexts.unique(dim=0))


def test_passages_that_nothing_reads_are_not_encoded_and_change_nothing(folder: Path) -> None:
    how: dict[str, Any] = {"grad_cache_tokens": 64, "log_batch_step": 10}
    idle, watched = (job(folder, "idle", **how), job(folder, "watched", watching := Watching(), **how))
    encoded: list[Counter[int]] = []
    for run in (idle, watched):
        encoded.append(Counter())
        hook = partial(
            lambda run, counts, _, given: counts.update({run.progress.step + 1: len(given[0])}),
            run,
            encoded[-1],
        )
        run.model.ctx_model.register_forward_pre_hook(hook)
        run.train()
    several = [step for step, size in sorted(encoded[0].items()) if size > 1]
    assert several == [1, 10, 20, 24], "the first is what a collapse is compared with, the others are logged"
    assert min(encoded[1].values()) > 4 and watching.num_distinct > 4
    rounding = 1e-5  # of other chunks
    assert_near(idle.model.weights(), watched.model.weights(), rounding)
    files = [run.output_dir / "metrics.jsonl" for run in (idle, watched)]
    logs = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    assert logs[0][0]["pool/margin"] == pytest.approx(logs[1][0]["pool/margin"], abs=rounding)
    assert len(logs[0]) == len(logs[1]) == 3
    assert not any("train/in_batch_acc" in line for log in logs for line in log)


def test_a_run_is_resumed_bit_for_bit_and_never_with_another_teacher(folder: Path) -> None:
    how: dict[str, Any] = {"fix_ctx_encoder": False}
    whole = job(folder, "whole", **how)
    whole.train()
    job(folder, "halves", StopAfter(3), **how).train()
    with pytest.raises(CheckpointError, match=r"different run: loss\.teacher\.content was"):
        job(folder, "halves", teacher="other", **how).train()
    resumed = job(folder, "halves", **how)
    resumed.train()
    assert_same_bits(resumed.model.weights(), whole.model.weights())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalize": False}, r"its normalize is True, the model's is False; set encoder\.normalize"),
        ({"projection_dim": 6}, r"dimensions is 16, the model's is 6; set encoder\.projection_dim"),
        ({"query_prompt": "ba: "}, r"its query_prompt is '', the model's is 'ba: '"),
        ({"sequence_length": 30}, r"takes 24 tokens, but .*_length is 30; set it to 24 or less"),
    ],
)
def test_what_could_never_be_reached_is_refused(folder: Path, settings: dict[str, Any], message: str) -> None:
    model = tiny_model(folder / "encoder", **{"pooling": "mean", "normalize": True, **settings})
    with pytest.raises(ConfigError, match=message):
        ModelTeacher(BiEncoder.load(folder / "teacher"), model, folder="")


def test_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    words = static_folder(tmp_path / "static") / "vocab.txt"
    words.write_text(words.read_text().replace("tu", "xu"))
    model = tiny_model(tmp_path / "static", pooling="mean", normalize=True)
    with pytest.raises(ConfigError, match=r"its tokenizer is .*make the model with the teacher's"):
        ModelTeacher(BiEncoder.load(folder / "teacher"), model, folder="")


WIDTH = 6
CORPUS: dict[Passage, str] = {}
"""The ids of all passages that samples name."""


def with_id(passage: Passage) -> Passage:
    return replace(passage, id=CORPUS.setdefault(replace(passage, id=None), f"d{len(CORPUS)}"))


LISTS = ("positives", "hard_negatives", "other_negatives")
SAMPLES = [
    replace(sample, **{name: tuple(map(with_id, getattr(sample, name))) for name in LISTS})
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
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Training rows, and vectors of their passages."""
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    write_training_set(tmp_path / "train.jsonl", SAMPLES)
    write_shards(tmp_path, "stored", vectors_of(0))
    return tmp_path


def static_job(
    folder: Path, teacher: Any, *, encoder: Any = (), options: Any = None, **run: Any
) -> BiEncoderTrainer:
    """A static encoder whose towers are separate: that of questions has nothing to learn."""
    settings = {"pooling": "mean", "normalize": True, "projection_dim": WIDTH, **dict(encoder)}
    place = static_folder(folder / "static")
    model = tiny_model(place, dtype=torch.float32, options=options, dropout=0.0, **settings)
    given = [str(folder / each) for each in teacher] if isinstance(teacher, list) else str(folder / teacher)
    how = {"learning_rate": 0.1, "num_train_epochs": 8, "hard_negatives": 1, **run}
    loss = TrainingSettings(loss=LossSettings(nll_weight=0.0, teacher=given))
    train = open_training_set(folder / "train.jsonl", name="mine")
    return make_trainer(model, [train], [], folder / "run", settings=loss, **how)


@pytest.mark.parametrize(
    "how", [{}, {"token_store": "off"}, {"grad_cache_tokens": 40}], ids=["stored tokens", "text", "cached"]
)
def test_passages_learn_the_vectors_of_their_ids(shards: Path, how: dict[str, Any]) -> None:
    run = static_job(shards, "stored_*", **how)
    assert isinstance(run.plan.dataset.sources[0], StoredTokens) == (how.get("token_store") != "off")
    before, questions = run.model.encode_passages(PASSAGES), run.model.encode_questions(["ba be", "bo"])
    run.train()
    after, wanted = run.model.encode_passages(PASSAGES), vectors_of(0)
    assert ((after * wanted).sum(1) > (before * wanted).sum(1) + 0.1).mean() > 0.9
    assert (after * wanted).sum(1).mean() > 0.9
    assert np.array_equal(run.model.encode_questions(["ba be", "bo"]), questions)


def test_a_run_needs_the_vectors_it_began_with_wherever_they_lie(shards: Path) -> None:
    static_job(shards, "stored_*").train()
    write_shards(shards, "copy", vectors_of(0))
    assert static_job(shards, ["copy_0", "copy_1"]).resume().step > 0
    write_shards(shards, "other", vectors_of(1))
    with pytest.raises(CheckpointError, match=r"different run: loss\.teacher\.content was"):
        static_job(shards, "other_*").resume()


def test_vectors_that_changed_since_they_were_written_are_refused_at_every_start(shards: Path) -> None:
    loss = LossSettings(guide=[str(shards / "stored_*")])
    make_loss(loss, candidates="distinct", namespaces=["mine"])
    file = shards / "stored_1" / "vectors-00000.npy"
    before, content = file.stat(), bytearray(file.read_bytes())
    content[-1] ^= 0x80
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match=r"stored_1: vectors-00000\.npy: content has changed"):
        make_loss(loss, candidates="distinct", namespaces=["mine"])


def test_a_passage_without_a_vector_is_named(shards: Path) -> None:
    write_shards(shards, "fewer", vectors_of(0), without=1)
    run = static_job(shards, "fewer_*", token_store="off")
    with pytest.raises(InputError, match=r"mine: row \d+: .* slot [01] has no vector") as caught:
        run.train()
    row, slot = (int(word.strip(":")) for word in str(caught.value).split() if word.strip(":").isdigit())
    sample = SAMPLES[row]
    listed = sample.hard_negatives or sample.other_negatives
    assert IDS[-1] in [passage.id for passage in (listed if slot else sample.positives)]


@pytest.mark.parametrize(
    ("vectors", "how", "message"),
    [
        (vectors_of(0)[:, :4], {}, "of 4 dimensions, .*; set encoder.projection_dim=4"),
        (3 * vectors_of(0), {}, "vectors of length 3, .*; set encoder.normalize=false"),
        (
            vectors_of(0),
            {"options": TowerOptions(fix_ctx_encoder=True)},
            "does not learn with .*fix_ctx_encoder",
        ),
    ],
)
def test_what_none_could_learn(shards: Path, vectors: np.ndarray, how: dict[str, Any], message: str) -> None:
    write_shards(shards, "wrong", vectors)
    with pytest.raises(ConfigError, match=message):
        static_job(shards, "wrong_*", **how)


def test_missing_shards_are_refused_and_longer_vectors_can_be_learned(shards: Path) -> None:
    with pytest.raises(InputError, match="no vectors found"):
        static_job(shards, "nowhere_*")
    write_shards(shards, "long", 3 * vectors_of(0))
    static_job(shards, "long_*", encoder={"normalize": False})
    with pytest.raises(ConfigError, match="needs the model that learns"):
        make_loss(LossSettings(teacher=str(shards / "long_*")), candidates="distinct")
