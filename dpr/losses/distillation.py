"""Terms that learn from a teacher: its scores of the passages of each question, or its vectors.
docs/numerics.md, section 1, has the formulas.

Letters: B questions of this rank, n own slots of each question, D dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.logs import get_logger
from dpr.losses.candidates import MASKED_SCORE
from dpr.losses.protocol import OWN_SCORES, GlobalBatch, Term, own_positive, own_slots
from dpr.losses.settings import ObjectiveSettings

logger = get_logger(__name__)

# Above this spread, the softmax of a teacher's scores is 0 in fp32 for all but the best.
WIDEST_SPREAD = 100.0


class Distillation(Term):
    """Difference between a question's scores for its own slots and those of a teacher, by KL divergence
    (``loss.kl_weight``), by margins (``loss.margin_mse_weight``) or by both.

    Use it where the training data hold scores of a stronger model, such as a cross-encoder. KL divergence is
    from "Distilling the Knowledge in a Neural Network" (Hinton et al., 2015), MarginMSE from "Improving
    Efficient Neural Ranking Models with Cross-Architecture Knowledge Distillation" (Hofstaetter et al.,
    2020). A question without teacher scores has loss 0. The term warns once of scores that cannot be learned
    from.

        >>> Distillation(ObjectiveSettings(kl_weight=1, teacher_temperature=2)).needs
        frozenset({'own_scores'})

    Relatives: ``kl_divergence`` and ``margin_mse`` are its formulas; ``Embedding`` learns a teacher's
    vectors.
    """

    needs = frozenset({OWN_SCORES})

    def __init__(self, settings: ObjectiveSettings) -> None:
        self.settings = settings
        self._has_warned = False

    def __call__(self, questions: Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch) -> Tensor:
        assert global_batch.own_scores is not None
        settings = self.settings
        scores = global_batch.own_scores
        given = batch.teacher_scores
        if given is None:
            given = torch.full(batch.context_valid.shape, torch.nan)
        given = given.where(batch.context_valid, torch.nan).view_as(scores)
        if settings.kl_weight and not self._has_warned:
            divisor = settings.teacher_temperature
            highest = given.nan_to_num(-torch.inf).amax(1)
            spread = float((highest - given.nan_to_num(torch.inf).amin(1)).amax())
            if spread > WIDEST_SPREAD * divisor:
                self._has_warned = True
                logger.warning(
                    "teacher scores of one question differ by %.3g, more than %g times"
                    " loss.teacher_temperature=%g: its softmax is 0 for all but the best; set"
                    " loss.teacher_temperature to about %.2g",
                    spread,
                    WIDEST_SPREAD,
                    divisor,
                    spread / 10,
                )
        teacher = on_device(given, scores.device).to(scores.dtype)
        is_scored = ~teacher.isnan()
        total = torch.zeros_like(scores[:, 0])
        if settings.kl_weight:
            total = total + settings.kl_weight * kl_divergence(
                scores / global_batch.temperature, teacher / settings.teacher_temperature, is_scored
            )
        if settings.margin_mse_weight:
            positive = on_device(own_positive(batch), scores.device)
            total = total + settings.margin_mse_weight * margin_mse(
                scores, settings.margin_mse_scale * teacher, is_scored, positive
            )
        return total


class Teacher(Protocol):
    """Source of the vectors to be learned, which have no gradient. ``fingerprint`` changes with them."""

    fingerprint: str
    teaches_passages: bool

    def questions(self, batch: BiEncoderBatch) -> Tensor | None:
        """Returns the vectors (B, D) of questions, or None if it teaches none."""
        ...

    def slots(self, batch: BiEncoderBatch) -> Tensor:
        """Returns the vectors (N, D) of the passages in context slots."""
        ...


class Embedding(Term):
    """Squared distance between a question's vector and the teacher's, plus its mean over the vectors of the
    question's own slots. A part that the teacher does not teach is left out.

    Use it with ``loss.teacher`` to distil another model's vectors, with ``loss.nll_weight=0`` from texts
    alone. "Making Monolingual Sentence Embeddings Multilingual using Knowledge Distillation" (Reimers and
    Gurevych, 2020) trains by the same distance.

        >>> from types import SimpleNamespace
        >>> teacher = SimpleNamespace(fingerprint="f", teaches_passages=False)
        >>> Embedding(teacher).reads_passages
        False

    Relative: ``Distillation`` learns a teacher's scores.
    """

    def __init__(self, teacher: Teacher) -> None:
        self._teacher = teacher
        self.reads_passages = teacher.teaches_passages

    def content(self) -> Mapping[str, str]:
        return {"teacher": self._teacher.fingerprint}

    def __call__(self, questions: Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch) -> Tensor:
        taught = self._teacher.questions(batch)
        # every tower takes part
        total = (questions - taught).square().sum(1) if taught is not None else 0.0 * questions.sum(1)
        if not self._teacher.teaches_passages:
            return total
        slots = own_slots(global_batch, len(questions))
        taught = self._teacher.slots(batch).to(slots.dtype).view_as(slots)
        counts = on_device(batch.context_valid, slots.device).view(slots.shape[:2])
        return total + ((slots - taught).square().sum(2) * counts).sum(1) / counts.sum(1)


def kl_divergence(student: Tensor, teacher: Tensor, is_scored: Tensor) -> Tensor:
    """Returns the divergence KL(teacher || student) of two softmax distributions over the scored slots of
    each question, (B,).

    ``student`` and ``teacher`` (B, n) are divided by their temperatures already. ``is_scored`` (B, n) marks
    the slots that count. It is 0 for a question with fewer than two of them.

        >>> teacher, is_scored = torch.tensor([[2.0, 0.0]]), torch.ones(1, 2, dtype=torch.bool)
        >>> kl_divergence(torch.zeros(1, 2), teacher, is_scored)
        tensor([0.3278])
    """
    log_student = student.masked_fill(~is_scored, MASKED_SCORE).log_softmax(1)
    log_teacher = teacher.masked_fill(~is_scored, MASKED_SCORE).log_softmax(1)
    return (log_teacher.exp() * (log_teacher - log_student)).masked_fill(~is_scored, 0.0).sum(1)


def margin_mse(student: Tensor, teacher: Tensor, is_scored: Tensor, positive: Tensor) -> Tensor:
    """Returns the mean squared difference of margins over the scored slots of each question other than its
    positive, (B,).

    A margin is the positive's score minus that of another slot. ``positive`` (B,) is the slot of the
    positive. It is 0 for a question whose positive has no score, or that has no other scored slot.

        >>> student, teacher = torch.tensor([[1.0, 0.5]]), torch.tensor([[3.0, 1.0]])
        >>> margin_mse(student, teacher, torch.ones(1, 2, dtype=torch.bool), torch.tensor([0]))
        tensor([2.2500])
    """
    column = positive[:, None]
    counts = (is_scored & is_scored.gather(1, column)).scatter(1, column, False)
    teacher = teacher.masked_fill(~is_scored, 0.0)
    gap = (student.gather(1, column) - student) - (teacher.gather(1, column) - teacher)
    return gap.square().masked_fill(~counts, 0.0).sum(1) / counts.sum(1).clamp(min=1)
