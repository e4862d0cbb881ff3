"""The objective written out: one question, one slot and one term at a time, in one process."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch

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

    def own(self, question: int) -> range:
        return range(question * self.width, (question + 1) * self.width)

    def positive(self, question: int) -> int:
        return int(self.batch.positive_idx[question])

    def is_valid(self, slot: int) -> bool:
        return bool(self.batch.context_valid[slot])

    def distinct(self, slots: range, question: int) -> list[int]:
        """The first slot of each passage, the question's own positive for its passage."""
        found: dict[Key, int] = {self.keys[self.positive(question)]: self.positive(question)}
        for slot in slots:
            if self.is_valid(slot):
                found.setdefault(self.keys[slot], slot)
        return list(found.values())


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0))


def rivals_of(
    global_batch: PlainGlobalBatch, question: int, settings: dict[str, Any], slots: range
) -> list[int]:
    """Those of ``slots`` that compete with a question's positive."""
    positive, found = global_batch.positive(question), []
    for slot in global_batch.distinct(slots, question):
        if (
            global_batch.keys[slot] == global_batch.keys[positive]
            or global_batch.keys[slot] in global_batch.known[question]
        ):
            continue
        mine, other = (
            global_batch.guide.get(global_batch.keys[positive]),
            global_batch.guide.get(global_batch.keys[slot]),
        )
        if mine is not None and other is not None and cosine(mine, other) > settings["guide_threshold"]:
            continue
        found.append(slot)
    return found


def share(wanted: Tensor, others: list[Tensor]) -> Tensor:
    """-log of the share of ``wanted`` in the softmax over all."""
    return torch.logsumexp(torch.stack([wanted, *others]), 0) - wanted


def num_correct(global_batch: PlainGlobalBatch, settings: dict[str, Any]) -> int:
    """Returns how many questions have the highest score for their positive."""
    if widths := settings.get("dimensions"):
        questions, slots = global_batch.questions[:, : max(widths)], global_batch.slots[:, : max(widths)]
        if global_batch.normalize:
            questions, slots = (part / part.norm(dim=1, keepdim=True) for part in (questions, slots))
        global_batch = replace(global_batch, questions=questions, slots=slots)
    global_batch, found = replace(global_batch, guide={}), 0
    for question in range(len(global_batch.questions)):
        positive = global_batch.keys[global_batch.positive(question)]
        others = [
            slot
            for slot in global_batch.own(question)
            if global_batch.is_valid(slot) and global_batch.keys[slot] != positive
        ]
        if settings.get("nll_weight", 1.0):
            others = rivals_of(global_batch, question, settings, range(len(global_batch.keys)))
        best = max((global_batch.raw(question, slot).item() for slot in others), default=-math.inf)
        found += global_batch.raw(question, global_batch.positive(question)).item() > best
    return found


def nll(global_batch: PlainGlobalBatch, question: int, settings: dict[str, Any]) -> Tensor:
    others = [
        global_batch.raw(question, slot) / global_batch.temperature
        for slot in rivals_of(global_batch, question, settings, range(len(global_batch.keys)))
    ]
    return share(
        global_batch.raw(question, global_batch.positive(question)) / global_batch.temperature, others
    )


def symmetric(global_batch: PlainGlobalBatch, question: int, settings: dict[str, Any]) -> Tensor:
    positive, others = global_batch.positive(question), []
    own = global_batch.raw(question, positive)
    for other in range(len(global_batch.questions)):
        if other == question or global_batch.keys[positive] in global_batch.known[other]:
            continue
        others.append(global_batch.raw(other, positive) / global_batch.temperature)
    return share(own / global_batch.temperature, others)


def teacher_of(global_batch: PlainGlobalBatch, question: int) -> dict[int, float]:
    assert global_batch.batch.teacher_scores is not None
    scores = global_batch.batch.teacher_scores.tolist()
    return {
        slot: scores[slot]
        for slot in global_batch.own(question)
        if global_batch.is_valid(slot) and not math.isnan(scores[slot])
    }


def kl(global_batch: PlainGlobalBatch, question: int, settings: dict[str, Any]) -> Tensor:
    teacher = teacher_of(global_batch, question)
    if not teacher:
        return torch.zeros((), dtype=torch.float64)
    student = torch.stack(
        [global_batch.raw(question, slot) / global_batch.temperature for slot in teacher]
    ).log_softmax(0)
    wanted = torch.tensor(
        [score / settings.get("teacher_temperature", 1.0) for score in teacher.values()], dtype=torch.float64
    )
    return sum(
        (share * (share.log() - own) for share, own in zip(wanted.softmax(0), student, strict=True)),
        torch.zeros(()),
    )


def margin_mse(global_batch: PlainGlobalBatch, question: int, settings: dict[str, Any]) -> Tensor:
    teacher, positive, total = (
        teacher_of(global_batch, question),
        global_batch.positive(question),
        torch.zeros((), dtype=torch.float64),
    )
    others = [slot for slot in teacher if slot != positive]
    if positive not in teacher:
        return total
    for slot in others:
        student = global_batch.raw(question, positive) - global_batch.raw(question, slot)
        total = total + (
            student - settings.get("margin_mse_scale", 1.0) * (teacher[positive] - teacher[slot])
        ) ** 2 / len(others)
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
        questions, slots = global_batch.questions[:, :width], global_batch.slots[:, :width]
        if global_batch.normalize:
            questions, slots = (part / part.norm(dim=1, keepdim=True) for part in (questions, slots))
        total = total + of_one_width(replace(global_batch, questions=questions, slots=slots), settings)
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
