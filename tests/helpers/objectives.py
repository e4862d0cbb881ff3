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


def rivals_of(pool: PlainPool, question: int, settings: dict[str, Any]) -> list[int]:
    """The slots that compete with a question's positive."""
    slots = range(len(pool.keys)) if settings.get("in_batch_negatives", True) else pool.own(question)
    positive, found = pool.positive(question), []
    for slot in pool.distinct(slots, question):
        if pool.keys[slot] == pool.keys[positive] or pool.keys[slot] in pool.known[question]:
            continue
        margin = settings.get("false_negative_margin")
        if (
            margin is not None
            and pool.raw(question, slot).item() > pool.raw(question, positive).item() + margin
        ):
            continue
        mine, other = pool.guide.get(pool.keys[positive]), pool.guide.get(pool.keys[slot])
        if mine is not None and other is not None and cosine(mine, other) > settings["guide_threshold"]:
            continue
        found.append(slot)
    return found


def weighed(raw: Tensor, settings: dict[str, Any], temperature: Tensor) -> Tensor:
    return raw / temperature + settings.get("hardness", 0.0) * raw.detach()


def share(wanted: list[Tensor], others: list[Tensor]) -> Tensor:
    """-log of the share of ``wanted`` in the softmax over all."""
    return torch.logsumexp(torch.stack([*wanted, *others]), 0) - torch.logsumexp(torch.stack(wanted), 0)


def positives_of(pool: PlainPool, question: int, settings: dict[str, Any]) -> list[int]:
    """The slots of a question's positives that the loss takes: its own, and with ``positives`` all that are
    known."""
    positive = pool.positive(question)
    if settings.get("positives", "one") == "one":
        return [positive]
    slots = range(len(pool.keys)) if settings.get("in_batch_negatives", True) else pool.own(question)
    known = pool.known[question] - {pool.keys[positive]}
    return [positive, *(slot for slot in pool.distinct(slots, question) if pool.keys[slot] in known)]


def num_correct(pool: PlainPool, settings: dict[str, Any]) -> int:
    """Questions one of whose positives scores highest, whatever guards and weights make of the scores;
    without nll among own slots."""
    names = ("in_batch_negatives", "positives") if settings.get("nll_weight", 1.0) else ()
    plain = {"in_batch_negatives": bool(names)} | {name: settings[name] for name in names if name in settings}
    if widths := settings.get("dimensions"):
        questions, slots = pool.questions[:, : max(widths)], pool.slots[:, : max(widths)]
        if pool.normalize:
            questions, slots = (part / part.norm(dim=1, keepdim=True) for part in (questions, slots))
        pool = replace(pool, questions=questions, slots=slots)
    pool, found = replace(pool, guide={}), 0
    for question in range(len(pool.questions)):
        mine, others = (rule(pool, question, plain) for rule in (positives_of, rivals_of))
        best = max((pool.raw(question, slot).item() for slot in others), default=-math.inf)
        found += max(pool.raw(question, slot).item() for slot in mine) > best
    return found


def nll(pool: PlainPool, question: int, settings: dict[str, Any]) -> Tensor:
    kind, wanted = settings.get("positives", "one"), positives_of(pool, question, settings)
    others = [
        weighed(pool.raw(question, slot), settings, pool.temperature)
        for slot in rivals_of(pool, question, settings)
    ]
    scores = [pool.raw(question, slot) / pool.temperature for slot in wanted]
    if kind == "each":
        return torch.stack([share([score], others) for score in scores]).sum()
    return share(scores, others)


def symmetric(pool: PlainPool, question: int, settings: dict[str, Any]) -> Tensor:
    positive, others = pool.positive(question), []
    own = pool.raw(question, positive)
    for other in range(len(pool.questions)):
        if other == question or pool.keys[positive] in pool.known[other]:
            continue
        raw, margin = pool.raw(other, positive), settings.get("false_negative_margin")
        if margin is None or raw.item() <= own.item() + margin:
            others.append(weighed(raw, settings, pool.temperature))
    return share([own / pool.temperature], others)


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
    divisor = settings.get("kl_temperature") or pool.temperature
    student = torch.stack([pool.raw(question, slot) / divisor for slot in teacher]).log_softmax(0)
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


TERMS = {
    "embedding_weight": embedding,
    "nll_weight": nll,
    "symmetric_weight": symmetric,
    "kl_weight": kl,
    "margin_mse_weight": margin_mse,
}


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
    return total / len(pool.questions)
