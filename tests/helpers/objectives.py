"""The objective written out: one question, one slot and one term at a time, over all questions of a pool in
one process."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch

Key = tuple[int, int]


@dataclass
class PlainPool:
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


def rivals_of(pool: PlainPool, question: int, settings: dict[str, Any], slots: range) -> list[int]:
    """Those of ``slots`` that compete with a question's positive."""
    positive, found = pool.positive(question), []
    for slot in pool.distinct(slots, question):
        if pool.keys[slot] == pool.keys[positive] or pool.keys[slot] in pool.known[question]:
            continue
        mine, other = pool.guide.get(pool.keys[positive]), pool.guide.get(pool.keys[slot])
        if mine is not None and other is not None and cosine(mine, other) > settings["guide_threshold"]:
            continue
        found.append(slot)
    return found


def share(wanted: Tensor, others: list[Tensor]) -> Tensor:
    """-log of the share of ``wanted`` in the softmax over all."""
    return torch.logsumexp(torch.stack([wanted, *others]), 0) - wanted


def num_correct(pool: PlainPool, settings: dict[str, Any]) -> int:
    """Questions whose positive scores highest, whatever a guide makes of the scores; without nll among own
    slots."""
    if widths := settings.get("dimensions"):
        questions, slots = pool.questions[:, : max(widths)], pool.slots[:, : max(widths)]
        if pool.normalize:
            questions, slots = (part / part.norm(dim=1, keepdim=True) for part in (questions, slots))
        pool = replace(pool, questions=questions, slots=slots)
    pool, found = replace(pool, guide={}), 0
    for question in range(len(pool.questions)):
        positive = pool.keys[pool.positive(question)]
        others = [slot for slot in pool.own(question) if pool.is_valid(slot) and pool.keys[slot] != positive]
        if settings.get("nll_weight", 1.0):
            others = rivals_of(pool, question, settings, range(len(pool.keys)))
        best = max((pool.raw(question, slot).item() for slot in others), default=-math.inf)
        found += pool.raw(question, pool.positive(question)).item() > best
    return found


def nll(pool: PlainPool, question: int, settings: dict[str, Any]) -> Tensor:
    others = [
        pool.raw(question, slot) / pool.temperature
        for slot in rivals_of(pool, question, settings, range(len(pool.keys)))
    ]
    return share(pool.raw(question, pool.positive(question)) / pool.temperature, others)


def symmetric(pool: PlainPool, question: int, settings: dict[str, Any]) -> Tensor:
    positive, others = pool.positive(question), []
    own = pool.raw(question, positive)
    for other in range(len(pool.questions)):
        if other == question or pool.keys[positive] in pool.known[other]:
            continue
        others.append(pool.raw(other, positive) / pool.temperature)
    return share(own / pool.temperature, others)


def teacher_of(pool: PlainPool, question: int) -> dict[int, float]:
    assert pool.batch.teacher_scores is not None
    scores = pool.batch.teacher_scores.tolist()
    return {
        slot: scores[slot]
        for slot in pool.own(question)
        if pool.is_valid(slot) and not math.isnan(scores[slot])
    }


def kl(pool: PlainPool, question: int, settings: dict[str, Any]) -> Tensor:
    teacher = teacher_of(pool, question)
    if not teacher:
        return torch.zeros((), dtype=torch.float64)
    student = torch.stack([pool.raw(question, slot) / pool.temperature for slot in teacher]).log_softmax(0)
    wanted = torch.tensor(
        [score / settings.get("teacher_temperature", 1.0) for score in teacher.values()], dtype=torch.float64
    )
    return sum(
        (share * (share.log() - own) for share, own in zip(wanted.softmax(0), student, strict=True)),
        torch.zeros(()),
    )


def margin_mse(pool: PlainPool, question: int, settings: dict[str, Any]) -> Tensor:
    teacher, positive, total = (
        teacher_of(pool, question),
        pool.positive(question),
        torch.zeros((), dtype=torch.float64),
    )
    others = [slot for slot in teacher if slot != positive]
    if positive not in teacher:
        return total
    for slot in others:
        student = pool.raw(question, positive) - pool.raw(question, slot)
        total = total + (
            student - settings.get("margin_mse_scale", 1.0) * (teacher[positive] - teacher[slot])
        ) ** 2 / len(others)
    return total


def embedding(pool: PlainPool, question: int, settings: dict[str, Any]) -> Tensor:
    assert pool.taught is not None
    questions, slots = pool.taught
    total = torch.zeros((), dtype=torch.float64)
    if questions is not None:
        total = total + ((pool.questions[question] - questions[question]) ** 2).sum()
    if slots is None:
        return total
    own_slots = [slot for slot in pool.own(question) if pool.is_valid(slot)]
    for slot in own_slots:
        total = total + ((pool.slots[slot] - slots[slot]) ** 2).sum() / len(own_slots)
    return total


TERMS = {"nll_weight": nll, "symmetric_weight": symmetric, "kl_weight": kl, "margin_mse_weight": margin_mse}


def objective(pool: PlainPool, settings: dict[str, Any]) -> Tensor:
    """J, by its definition."""
    widths = settings.get("dimensions") or [pool.questions.shape[1]]
    total = torch.zeros((), dtype=torch.float64)
    for width in widths:
        questions, slots = pool.questions[:, :width], pool.slots[:, :width]
        if pool.normalize:
            questions, slots = (part / part.norm(dim=1, keepdim=True) for part in (questions, slots))
        total = total + of_one_width(replace(pool, questions=questions, slots=slots), settings)
    return total


def of_one_width(pool: PlainPool, settings: dict[str, Any]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for question, weight in enumerate(pool.batch.loss_weights.tolist()):
        for name, term in TERMS.items():
            if factor := settings.get(name, 1.0 if name == "nll_weight" else 0.0):
                total = total + weight * factor * term(pool, question, settings)
        if pool.taught is not None:
            total = total + weight * embedding(pool, question, settings)
    return total / len(pool.questions)
