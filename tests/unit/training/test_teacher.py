"""A teacher's vectors are learned from texts alone, and refused where they could never be reached."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.errors import CheckpointError, ConfigError
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.settings import LossSettings, TrainingSettings
from dpr.training.teacher import ModelTeacher
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, static_folder, tiny_model
from tests.helpers.training import make_trainer

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


class StopAt(Callback):
    def on_step_end(self, run: Any) -> None:
        if run.progress.step == 3:
            run.request_stop("test")


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
    loss = LossSettings(nll_weight=0.0, teacher=str(folder / teacher))
    settings = TrainingSettings(loss=loss)
    options_of_run: dict[str, Any] = {
        "learning_rate": 0.1,
        "num_train_epochs": 8,
        "hard_negatives": 0,
        **others,
    }
    return make_trainer(
        model,
        [ListSource(make_samples(24))],
        [],
        folder / out,
        *callbacks,
        settings=settings,
        **options_of_run,
    )


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
    weights, rounding = watched.model.weights(), 1e-5  # of other chunks
    assert all(
        torch.allclose(weight, weights[name], rtol=0, atol=rounding)
        for name, weight in idle.model.weights().items()
    )
    logs = [
        [json.loads(line) for line in (run.output_dir / "metrics.jsonl").read_text().splitlines()]
        for run in (idle, watched)
    ]
    assert logs[0][0]["pool/margin"] == pytest.approx(logs[1][0]["pool/margin"], abs=rounding)
    assert len(logs[0]) == len(logs[1]) == 3 and not any(
        "train/in_batch_acc" in line for log in logs for line in log
    )


def test_a_run_is_resumed_bit_for_bit_and_never_with_another_teacher(folder: Path) -> None:
    how: dict[str, Any] = {"fix_ctx_encoder": False}
    whole = job(folder, "whole", **how)
    whole.train()
    job(folder, "halves", StopAt(), **how).train()
    with pytest.raises(CheckpointError, match=r"different run: loss\.teacher\.content was"):
        job(folder, "halves", teacher="other", **how).train()
    resumed = job(folder, "halves", **how)
    resumed.train()
    assert all(
        torch.equal(weight, resumed.model.weights()[name]) for name, weight in whole.model.weights().items()
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"normalize": False},
            r"its normalize is True, the model's is False; set encoder\.normalize to the teacher's",
        ),
        (
            {"projection_dim": 6},
            r"its number of dimensions is 16, the model's is 6; set encoder\.projection_dim",
        ),
        ({"query_prompt": "ba: "}, r"its query_prompt is '', the model's is 'ba: '"),
        (
            {"sequence_length": 30},
            r"takes 24 tokens, but encoder\.(question|sequence)_length is 30; set it to 24 or less",
        ),
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
