"""Every objective is one function of its global batch: over processes, cached, packed or padded, in blocks."""

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import current_ranks
from dpr.data.collator import Collator
from dpr.data.iterators import MultiSetDataIterator, ShardedDataIterator
from dpr.data.loader import GlobalBatchDataset
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.losses.filtered_nll import StoredVectors
from dpr.losses.objective import Objective
from dpr.losses.settings import ObjectiveSettings
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.training.compute import data_parallel
from dpr.training.grad_cache import CachedStep
from dpr.training.step import DirectStep, Step
from dpr.training.teacher import ModelTeacher, StoredTeacher
from tests.helpers.objectives import PlainGlobalBatch, num_correct, objective
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import gradients, taken

GLOBAL_BATCH, NUM_HARD, NUM_OTHER = 8, 2, 1
# Sums of float64 in another order; the gradients themselves are of order 1.
TOLERANCE = 1e-11
CPU = torch.device("cpu")

OBJECTIVES: dict[str, dict[str, Any]] = {
    "nll": {},
    "kl alone": {"nll_weight": 0.0, "kl_weight": 1.0, "teacher_temperature": 2.0},
    "margin_mse alone": {"nll_weight": 0.0, "margin_mse_weight": 1.0, "margin_mse_scale": 0.3},
    "nll, kl and margin_mse": {"nll_weight": 0.5, "kl_weight": 0.7, "margin_mse_weight": 0.1},
    "symmetric alone": {"nll_weight": 0.0, "symmetric_weight": 0.7},
    "matryoshka": {"dimensions": [16, 8, 3]},
    "matryoshka of vectors of length 1, all terms": {
        "dimensions": [4, 10],
        "kl_weight": 1.0,
        "symmetric_weight": 1.0,
    },
    "guide": {"guide": ["by hand"], "guide_threshold": 0.2},
    "a teacher's vectors alone": {"nll_weight": 0.0, "teacher": "saved"},
    "a teacher's vectors of questions, and nll": {"nll_weight": 0.5, "teacher": "saved"},
    "stored vectors, and nll": {"nll_weight": 0.5, "teacher": "stored"},
}
STORED = {name for name, settings in OBJECTIVES.items() if settings.get("teacher") == "stored"}
QUESTIONS_TAUGHT = {"a teacher's vectors of questions, and nll"}
NORMALIZED = {"kl alone", "matryoshka of vectors of length 1, all terms"}


class HandMadeGuide(StoredVectors):
    """A vector for most identities, as a function of them."""

    def __init__(self) -> None:
        self.dimension, self.fingerprint = 3, "by hand"

    def vectors(self, ids: torch.Tensor) -> torch.Tensor:
        raw = torch.stack([(ids[:, 0] % prime).to(torch.float32) - prime / 2 for prime in (7, 11, 13)], dim=1)
        raw = raw * (ids[:, 0] % 4 > 0)[:, None]
        return torch.nn.functional.normalize(raw, dim=1)

    def find(self, ids: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        found = self.vectors(ids).numpy()
        return found.any(1), found


def with_teacher(batch: BiEncoderBatch) -> BiEncoderBatch:
    """Scores that are a function of question and passage; some slots and some questions have none."""
    rows = torch.tensor(batch.rows).repeat_interleave(len(batch.context_ids) // len(batch))
    number = (batch.context_ids[:, 0] % 1009 + 7 * rows) % 101
    scores = number.to(torch.float32) / 20
    return replace(batch, teacher_scores=scores.where((number % 5 > 0) & (rows % 4 > 0), torch.nan))


@cache
def global_batch_batch(tensorizer: Tensorizer, rank: int, world_size: int) -> BiEncoderBatch:
    source = ListSource(make_samples(3 * GLOBAL_BATCH, num_passages=24))
    order = ShardedDataIterator(
        len(source), global_batch_size=GLOBAL_BATCH, seed=5, rank=rank, world_size=world_size
    )
    collator = Collator(tensorizer, num_hard=NUM_HARD, num_other=NUM_OTHER, seed=5)
    sets = [(source, DataSetSettings(loss_scale=0.5))]
    return with_teacher(GlobalBatchDataset(sets, MultiSetDataIterator([order], seed=5), collator)[1, 0])


@cache
def make_model(folder: Path, normalize: bool, packed: bool) -> BiEncoder:
    """One for all objectives: making it takes longer than a step, which leaves its weights as they are."""
    options = TowerOptions(temperature=0.6, learn_temperature=True, packed=packed)
    return tiny_model(folder, options=options, normalize=normalize).train()


def teacher_of(folder: Path, name: str) -> ModelTeacher | StoredTeacher:
    """Stored vectors are those of the very model."""
    if name in STORED:
        saved, batch = (
            BiEncoder.load(folder.parent / "teacher").double(),
            global_batch_batch(make_model(folder, False, True).tensorizer, 0, 1),
        )
        chunk = saved.encode_batch(batch.contexts, encoder_type="ctx")[batch.context_row][
            batch.context_valid
        ].numpy()
        keys = batch.context_ids[batch.context_valid, 0].numpy()
        vectors = StoredVectors([chunk[:5], chunk[5:]], keys, np.arange(len(keys)), fingerprint="stored")
        return StoredTeacher(vectors, ["tiny"], make_model(folder, False, True))
    given = BiEncoder.load(folder.parent / "teacher")
    teacher = ModelTeacher(given, make_model(folder, name in NORMALIZED, True), folder="")
    teacher.teaches_passages = name not in QUESTIONS_TAUGHT
    return teacher


@cache
def make_parallel(folder: Path, normalize: bool, packed: bool) -> tuple[BiEncoder, nn.Module]:
    model = copy.deepcopy(make_model(folder, normalize, packed))
    return model, data_parallel(model, current_ranks(), CPU)


def gradient_of(
    folder: Path, name: str, *, cached: bool, packed: bool, max_scores: int = 1 << 22
) -> dict[str, torch.Tensor]:
    """Loss, number correct and gradient of one step, as every rank of a group sees them."""
    ranks = current_ranks()
    settings = ObjectiveSettings(**OBJECTIVES[name])
    guide = HandMadeGuide() if settings.guide else None
    teacher = teacher_of(folder, name) if settings.teacher else None
    loss = Objective(
        settings, normalize=name in NORMALIZED, false_negatives=guide, teacher=teacher, max_scores=max_scores
    )
    step: Step
    if cached:
        model = make_model(folder, name in NORMALIZED, packed)
        step = CachedStep(model, loss, max_tokens=40, ranks=ranks, device=CPU)
    else:
        model, parallel = make_parallel(folder, name in NORMALIZED, packed)
        step = DirectStep(parallel, loss, ranks=ranks, device=CPU)
    model.zero_grad()
    return taken(step, model, [global_batch_batch(model.tensorizer, ranks.rank, ranks.world_size)])


WAYS = {
    "direct, packed": {"cached": False, "packed": True},
    "cached, padded": {"cached": True, "packed": False},
    "cached, packed, in blocks": {"cached": True, "packed": True, "max_scores": 7},
}


def every_case(folder: Path) -> dict[tuple[str, str], dict[str, torch.Tensor]]:
    return {(name, way): gradient_of(folder, name, **how) for name in OBJECTIVES for way, how in WAYS.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = encoder_folder(tmp_path_factory.mktemp("model") / "encoder", num_hidden_layers=1)
    tiny_model(folder, seed=9, dtype=torch.float32).save(folder.parent / "teacher")
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[int, list[dict[tuple[str, str], dict[str, torch.Tensor]]]]:
    """What each rank computed, for 1 and 2 processes."""
    return {world_size: run_on_ranks(every_case, world_size, folder) for world_size in (1, 2)}


def slow_truth(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """Loss, number correct and gradient of the objective written out, from vectors of the padded towers."""
    model = make_model(folder, name in NORMALIZED, packed=False)
    model.zero_grad()
    batch = global_batch_batch(model.tensorizer, 0, 1)
    vectors = model(batch.questions, batch.contexts)
    global_batch = PlainGlobalBatch(
        vectors.questions,
        vectors.contexts[batch.context_row],
        batch,
        vectors.temperature.value,
        model.settings.normalize,
    )
    if "guide" in OBJECTIVES[name]:
        found = HandMadeGuide().vectors(batch.context_ids)
        global_batch.guide = {
            key: vector for key, vector in zip(global_batch.keys, found, strict=True) if vector.any()
        }
    if "teacher" in OBJECTIVES[name]:
        teacher = BiEncoder.load(folder.parent / "teacher").double()
        with torch.no_grad():
            slots = teacher.ctx_model.of_padded(*batch.contexts.padded(0))[batch.context_row]
            questions = (
                None if name in STORED else teacher.question_model.of_padded(*batch.questions.padded(0))
            )
            global_batch.taught = questions, None if name in QUESTIONS_TAUGHT else slots
    value = objective(global_batch, OBJECTIVES[name])
    value.backward()
    correct = torch.tensor(num_correct(global_batch, OBJECTIVES[name]))
    return {"loss": value.detach(), "correct": correct, **gradients(model)}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_gradient_equal_the_slow_truth(folder: Path, found: dict[int, Any], name: str) -> None:
    expected = slow_truth(folder, name)
    assert (
        max(float(tensor.norm()) for key, tensor in expected.items() if key not in ("loss", "correct")) > 1e-4
    ), "a zero gradient is equal everywhere"
    largest = 0.0
    for world_size, ranks in found.items():
        for rank, results in enumerate(ranks):
            for way in WAYS:
                result = results[name, way]
                for key, value in expected.items():
                    # Logged losses leave the sets' weights out; all rows are of one set.
                    value = 2 * value if key == "loss" else value
                    largest = max(largest, float((result[key] - value).abs().max()))
                    assert largest <= TOLERANCE, f"{key}, {way}, rank {rank} of {world_size}: {largest}"
    print(f"{name}: {largest:.1e}")
