"""Every objective is one function of its global batch: over processes, cached, packed or padded, in blocks."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

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


# The objective written out: one question, one slot and one term at a time, in one process.
Key = tuple[int, int]


@dataclass
class PlainGlobalBatch:
    """Vectors of all questions (Q, D) and slots (Q * n, D) with what is known of them."""

    questions: Tensor
    slots: Tensor
    batch: BiEncoderBatch
    temperature: Tensor
    normalize: bool = False
    guide: dict[Key, Tensor] = field(default_factory=dict)
    taught: tuple[Tensor | None, Tensor | None] | None = None
    """A teacher's vectors of the questions (Q, D) and of the slots (Q * n, D), if it teaches these."""

    def __post_init__(self) -> None:
        self.keys: list[Key] = [tuple(pair) for pair in self.batch.context_ids.tolist()]
        self.known: list[set[Key]] = [
            {tuple(pair) for pair, valid in zip(pairs, valids, strict=True) if valid}
            for pairs, valids in zip(
                self.batch.known_positive_ids.tolist(), self.batch.known_positive_valid.tolist(), strict=True
            )
        ]
        self.width = len(self.keys) // len(self.questions)

    def raw(self, question: int, slot: int) -> Tensor:
        return self.questions[question] @ self.slots[slot]

    def logit(self, question: int, slot: int) -> Tensor:
        return self.raw(question, slot) / self.temperature

    def own(self, question: int) -> range:
        return range(question * self.width, (question + 1) * self.width)

    def positive(self, question: int) -> int:
        return int(self.batch.positive_idx[question])

    def is_valid(self, slot: int) -> bool:
        return bool(self.batch.context_valid[slot])

    def distinct(self, question: int) -> list[int]:
        """The first slot of each passage, the question's own positive for its passage."""
        found: dict[Key, int] = {self.keys[self.positive(question)]: self.positive(question)}
        for slot in range(len(self.keys)):
            if self.is_valid(slot):
                found.setdefault(self.keys[slot], slot)
        return list(found.values())

    def cut(self, width: int) -> PlainGlobalBatch:
        """The same, of the first numbers of every vector."""
        questions, slots = self.questions[:, :width], self.slots[:, :width]
        if self.normalize:
            questions, slots = (part / part.norm(dim=1, keepdim=True) for part in (questions, slots))
        return replace(self, questions=questions, slots=slots)


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0))


def rivals_of(global_batch: PlainGlobalBatch, question: int, settings: dict[str, Any]) -> list[int]:
    """The slots that compete with a question's positive."""
    positive, guide = global_batch.keys[global_batch.positive(question)], global_batch.guide
    found = []
    for slot in global_batch.distinct(question):
        key = global_batch.keys[slot]
        if key == positive or key in global_batch.known[question]:
            continue
        is_guided = positive in guide and key in guide
        if is_guided and cosine(guide[positive], guide[key]) > settings["guide_threshold"]:
            continue
        found.append(slot)
    return found


def share(wanted: Tensor, others: list[Tensor]) -> Tensor:
    """-log of the share of ``wanted`` in the softmax over all."""
    return torch.logsumexp(torch.stack([wanted, *others]), 0) - wanted


def num_correct(global_batch: PlainGlobalBatch, settings: dict[str, Any]) -> int:
    """Returns how many questions have the highest score for their positive."""
    if widths := settings.get("dimensions"):
        global_batch = global_batch.cut(max(widths))
    global_batch, found = replace(global_batch, guide={}), 0
    for question in range(len(global_batch.questions)):
        positive = global_batch.keys[global_batch.positive(question)]
        others = [
            slot
            for slot in global_batch.own(question)
            if global_batch.is_valid(slot) and global_batch.keys[slot] != positive
        ]
        if settings.get("nll_weight", 1.0):
            others = rivals_of(global_batch, question, settings)
        best = max((global_batch.raw(question, slot).item() for slot in others), default=-math.inf)
        found += global_batch.raw(question, global_batch.positive(question)).item() > best
    return found


def nll(global_batch: PlainGlobalBatch, question: int, settings: dict[str, Any]) -> Tensor:
    rivals = rivals_of(global_batch, question, settings)
    own = global_batch.logit(question, global_batch.positive(question))
    return share(own, [global_batch.logit(question, slot) for slot in rivals])


def symmetric(global_batch: PlainGlobalBatch, question: int, settings: dict[str, Any]) -> Tensor:
    positive, others = global_batch.positive(question), []
    for other in range(len(global_batch.questions)):
        if other != question and global_batch.keys[positive] not in global_batch.known[other]:
            others.append(global_batch.logit(other, positive))
    return share(global_batch.logit(question, positive), others)


def scores_of_teacher(global_batch: PlainGlobalBatch, question: int) -> dict[int, float]:
    assert global_batch.batch.teacher_scores is not None
    scores = global_batch.batch.teacher_scores.tolist()
    return {
        slot: scores[slot]
        for slot in global_batch.own(question)
        if global_batch.is_valid(slot) and not math.isnan(scores[slot])
    }


def kl(global_batch: PlainGlobalBatch, question: int, settings: dict[str, Any]) -> Tensor:
    teacher = scores_of_teacher(global_batch, question)
    if not teacher:
        return torch.zeros((), dtype=torch.float64)
    student = torch.stack([global_batch.logit(question, slot) for slot in teacher]).log_softmax(0)
    wanted = torch.tensor(
        [score / settings.get("teacher_temperature", 1.0) for score in teacher.values()], dtype=torch.float64
    )
    return sum(
        (share * (share.log() - own) for share, own in zip(wanted.softmax(0), student, strict=True)),
        torch.zeros(()),
    )


def margin_mse(global_batch: PlainGlobalBatch, question: int, settings: dict[str, Any]) -> Tensor:
    teacher, positive = scores_of_teacher(global_batch, question), global_batch.positive(question)
    total = torch.zeros((), dtype=torch.float64)
    if positive not in teacher:
        return total
    for slot in teacher.keys() - {positive}:
        student = global_batch.raw(question, positive) - global_batch.raw(question, slot)
        wanted = settings.get("margin_mse_scale", 1.0) * (teacher[positive] - teacher[slot])
        total = total + (student - wanted) ** 2 / (len(teacher) - 1)
    return total


def embedding(global_batch: PlainGlobalBatch, question: int, settings: dict[str, Any]) -> Tensor:
    assert global_batch.taught is not None
    questions, slots = global_batch.taught
    total = torch.zeros((), dtype=torch.float64)
    if questions is not None:
        total = total + ((global_batch.questions[question] - questions[question]) ** 2).sum()
    if slots is None:
        return total
    own_slots = [slot for slot in global_batch.own(question) if global_batch.is_valid(slot)]
    for slot in own_slots:
        total = total + ((global_batch.slots[slot] - slots[slot]) ** 2).sum() / len(own_slots)
    return total


TERMS = {"nll_weight": nll, "symmetric_weight": symmetric, "kl_weight": kl, "margin_mse_weight": margin_mse}


def objective(global_batch: PlainGlobalBatch, settings: dict[str, Any]) -> Tensor:
    """J, by its definition."""
    widths = settings.get("dimensions") or [global_batch.questions.shape[1]]
    total = torch.zeros((), dtype=torch.float64)
    for width in widths:
        total = total + of_one_width(global_batch.cut(width), settings)
    return total


def of_one_width(global_batch: PlainGlobalBatch, settings: dict[str, Any]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for question, weight in enumerate(global_batch.batch.loss_weights.tolist()):
        for name, term in TERMS.items():
            if factor := settings.get(name, 1.0 if name == "nll_weight" else 0.0):
                total = total + weight * factor * term(global_batch, question, settings)
        if global_batch.taught is not None:
            total = total + weight * embedding(global_batch, question, settings)
    return total / len(global_batch.questions)


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
