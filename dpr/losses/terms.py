"""The terms of an objective. docs/numerics.md, section 1, has the formulas.

Letters: B questions of this rank, Q questions and M context slots of the pool, n own slots of each question,
K known or other positives of a question at most, D dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.logs import get_logger
from dpr.core.records import WHOLE_DOCUMENT
from dpr.core.temperature import Temperature
from dpr.losses.candidates import (
    MASKED_SCORE,
    Candidates,
    GuideVectors,
    Rivals,
    are_known,
    are_same,
    names_of,
    score_matrix,
)
from dpr.losses.guide import Guide
from dpr.losses.nll import blockwise_nll, in_blocks, nll_of_columns, nll_of_scores
from dpr.losses.protocol import CONTEXTS, KNOWN_POSITIVES, OWN_SCORES, QUESTIONS, LossResult, Pool, Term
from dpr.losses.settings import ObjectiveSettings

logger = get_logger(__name__)

# Above it, the softmax of a teacher's scores is 0 in fp32 for all but the best.
WIDEST_SPREAD = 100.0
# Data sets with and without scores may alternate.
MOST_WITHOUT = 10


class Nll(Term):
    """-log softmax of a question's positive among the candidates of the pool or, without in-batch negatives,
    among its own slots."""

    def __init__(
        self, settings: ObjectiveSettings, *, candidates: str, guide: Guide | None, max_scores: int
    ) -> None:
        self.settings, self.candidates, self._guide, self._max_scores = (
            settings,
            candidates,
            guide,
            max_scores,
        )
        self.needs = frozenset({CONTEXTS if settings.in_batch_negatives else OWN_SCORES})

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> LossResult:
        return (
            self._among_pool(questions, pool)
            if self.settings.in_batch_negatives
            else self._among_own(pool, batch)
        )

    def _among_pool(self, questions: Tensor, pool: Pool) -> LossResult:
        settings, found, guide = self.settings, pool.candidates, None
        if self._guide is not None:
            vectors = on_device(self._guide.vectors(pool.ids), questions.device)
            guide = GuideVectors(vectors[found.target], vectors, settings.guide_threshold)
        ceiling = score_ceiling(settings, questions, pool.contexts[found.target], pool)
        rivals, size = Rivals(found, ceiling, guide, hardness=settings.hardness), self._max_scores
        if settings.positives == "one":
            return nll_of_columns(questions, pool.contexts, rivals, pool.temperature, max_scores=size)
        return positives_of_columns(
            settings.positives,
            questions,
            pool.contexts,
            rivals,
            found.masked,
            pool.temperature,
            max_scores=size,
        )

    def _among_own(self, pool: Pool, batch: BiEncoderBatch) -> LossResult:
        assert pool.own_scores is not None
        settings, scores, suspects = self.settings, pool.own_scores, None
        if self._guide is not None:
            vectors = self._guide.vectors(batch.context_ids).view(*scores.shape, -1)
            positives = vectors[torch.arange(len(batch)), own_positive(batch)]
            suspects = on_device(
                torch.bmm(vectors, positives[:, :, None])[:, :, 0] > settings.guide_threshold, scores.device
            )
        candidates, others = own_candidates(batch, self.candidates)
        candidates, scores = candidates.to(scores.device), scores / pool.temperature
        ceiling = None
        if settings.false_negative_margin is not None:
            positive_scores = scores.detach().gather(1, candidates.target[:, None])[:, 0]
            ceiling = positive_scores + settings.false_negative_margin / pool.temperature.constant()
        rivals = Rivals(candidates, ceiling, suspects=suspects, hardness=settings.hardness)
        if settings.positives == "one":
            return nll_of_scores(scores, rivals, pool.temperature)
        return positives_of_scores(
            settings.positives, scores, rivals, on_device(others, scores.device), pool.temperature
        )


class Symmetric(Term):
    """-log softmax of each question among all questions of the pool, given its positive."""

    def __init__(self, settings: ObjectiveSettings, *, candidates: str, max_scores: int) -> None:
        self.settings, self.candidates, self._max_scores = settings, candidates, max_scores
        self.needs = frozenset({QUESTIONS, KNOWN_POSITIVES} if candidates == "distinct" else {QUESTIONS})

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> Tensor:
        slots = own_slots(pool, len(questions))
        column = on_device(own_positive(batch), questions.device)[:, None, None].expand(-1, 1, slots.shape[2])
        passages = slots.gather(1, column)[:, 0]
        candidates = competing_questions(pool, batch, self.candidates).to(questions.device)
        rivals = Rivals(
            candidates,
            score_ceiling(self.settings, passages, questions, pool),
            hardness=self.settings.hardness,
        )
        return nll_of_columns(
            passages, pool.questions, rivals, pool.temperature, max_scores=self._max_scores
        ).losses


class Distillation(Term):
    """A question's scores for its own slots against those of a teacher, by KL divergence, by margins or by
    both with their weights.

    A question without teacher scores has 0. It warns once of scores that cannot be learned from.
    """

    needs = frozenset({OWN_SCORES})

    def __init__(self, settings: ObjectiveSettings) -> None:
        self.settings, self._kl_weight, self._margin_weight = (
            settings,
            settings.weight_of("kl"),
            settings.weight_of("margin_mse"),
        )
        self._has_warned, self._num_without = False, 0

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> Tensor:
        assert pool.own_scores is not None
        settings, scores = self.settings, pool.own_scores
        given = (
            batch.teacher_scores
            if batch.teacher_scores is not None
            else torch.full((scores.numel(),), torch.nan)
        )
        given = given.where(batch.context_valid, torch.nan).view_as(scores)
        self._warn(given)
        teacher = on_device(given, scores.device).to(scores.dtype)
        is_scored, total = ~teacher.isnan(), torch.zeros_like(scores[:, 0])
        if self._kl_weight:
            student = scores / (
                pool.temperature if settings.kl_temperature is None else settings.kl_temperature
            )
            total = total + self._kl_weight * kl_divergence(
                student, teacher / settings.teacher_temperature, is_scored
            )
        if self._margin_weight:
            positive = on_device(own_positive(batch), scores.device)
            total = total + self._margin_weight * margin_mse(
                scores, settings.margin_mse_scale * teacher, is_scored, positive
            )
        return total

    def _warn(self, teacher: Tensor) -> None:
        """Looks at teacher scores (B, n) on the host."""
        if self._has_warned:
            return
        is_scored, divisor = ~teacher.isnan(), self.settings.teacher_temperature
        spread = float(
            (
                teacher.where(is_scored, -torch.inf).amax(1) - teacher.where(is_scored, torch.inf).amin(1)
            ).amax()
        )
        if not is_scored.any():
            self._num_without += 1
            if self._num_without == MOST_WITHOUT:
                self._has_warned = True
                message = (
                    "no passage of %d batches in a row has a teacher score, which loss.kl_weight and"
                    " loss.margin_mse_weight learn from"
                )
                logger.warning(message, MOST_WITHOUT)
            return
        self._num_without = 0
        if self._kl_weight and spread > WIDEST_SPREAD * divisor:
            self._has_warned = True
            logger.warning(
                "teacher scores of one question differ by %.3g, more than %g times"
                " loss.teacher_temperature=%g: its softmax is 0 for all but the best; set"
                " loss.teacher_temperature to about %.2g",
                *(spread, WIDEST_SPREAD, divisor, spread / 10),
            )


class Teacher(Protocol):
    """Whose vectors are learned, without gradient; ``fingerprint`` changes with them."""

    fingerprint: str
    teaches_passages: bool

    def questions(self, batch: BiEncoderBatch) -> Tensor | None:
        """The vectors (B, D) of questions; None if it teaches none."""
        ...

    def slots(self, batch: BiEncoderBatch) -> Tensor:
        """The vectors (N, D) of the passages in context slots."""
        ...


class Embedding(Term):
    """The squared distance of a question's vector to the teacher's and the mean of those of its own slots, of
    what it teaches."""

    def __init__(self, teacher: Teacher) -> None:
        self._teacher, self.reads_passages = teacher, teacher.teaches_passages

    def content(self) -> Mapping[str, str]:
        return {"teacher": self._teacher.fingerprint}

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> Tensor:
        taught = self._teacher.questions(batch)
        # every tower takes part
        total = (questions - taught).square().sum(1) if taught is not None else 0.0 * questions.sum(1)
        if not self._teacher.teaches_passages:
            return total
        slots = own_slots(pool, len(questions))
        taught = self._teacher.slots(batch).to(slots.dtype).view_as(slots)
        counts = on_device(batch.context_valid, slots.device).view(slots.shape[:2])
        return total + ((slots - taught).square().sum(2) * counts).sum(1) / counts.sum(1)


def positives_of_columns(
    kind: str,
    questions: Tensor,
    columns: Tensor,
    rivals: Rivals,
    others: Tensor,
    temperature: Temperature,
    *,
    max_scores: int,
) -> LossResult:
    """The loss of all positives of each question, (B,): its target and ``others`` (B, K), columns of the
    vectors (M, D), M where none.

    Holds (B, K, D) numbers besides what the negatives need.
    """
    if not in_blocks(questions, columns, max_scores):
        return positives_of_scores(
            kind, score_matrix(questions, columns, temperature), rivals, others, temperature
        )
    wanted, negatives = _split(rivals, others, len(columns))
    log_sum, _, best = blockwise_nll(questions, columns, negatives, temperature, max_scores=max_scores)
    dtype = torch.promote_types(questions.dtype, torch.float32)
    vectors = columns.to(dtype)[wanted.clamp(max=len(columns) - 1)]
    scores = torch.bmm(vectors, questions.to(dtype)[:, :, None])[:, :, 0] / temperature
    return _combined(kind, log_sum, best, scores, wanted < len(columns))


def positives_of_scores(
    kind: str, scores: Tensor, rivals: Rivals, others: Tensor, temperature: Temperature
) -> LossResult:
    """As ``positives_of_columns``, from the scores (B, M)."""
    size = scores.shape[1]
    wanted, negatives = _split(rivals, others, size)
    positive_scores = scores.gather(1, wanted.clamp(max=size - 1))
    # A copy, because backward of the positives' scores reads what they were taken from.
    scores = negatives.candidates.mask_(scores.clone())
    best = scores.detach().amax(1)
    scores = negatives.weighed(scores, temperature.constant())
    return _combined(kind, scores.logsumexp(1), best, positive_scores, wanted < size)


def _split(rivals: Rivals, others: Tensor, size: int) -> tuple[Tensor, Rivals]:
    """The columns of the positives, (B, 1 + K), and what remains when these are taken out: no column is a
    target."""
    wanted, found = torch.cat([rivals.target[:, None], others], dim=1), rivals.candidates
    left = found._replace(
        target=torch.full_like(found.target, size), masked=torch.cat([wanted, found.masked], dim=1)
    )
    return wanted, replace(rivals, candidates=left)


def _combined(kind: str, negatives: Tensor, best: Tensor, positives: Tensor, exists: Tensor) -> LossResult:
    """From the log-sum-exp of the negatives (B,), the best of them (B,), and the scores of the positives (B,
    1 + K) that exist."""
    masked = positives.masked_fill(~exists, MASKED_SCORE)
    if kind == "any":
        losses = -logsigmoid(masked.logsumexp(1) - negatives)
    else:
        losses = -logsigmoid(positives - negatives[:, None]).masked_fill(~exists, 0.0).sum(1)
    return LossResult(losses, masked.detach().amax(1) > best)


def kl_divergence(student: Tensor, teacher: Tensor, is_scored: Tensor) -> Tensor:
    """Of each question the divergence KL(teacher || student) of two softmax distributions over its scored
    slots, (B,).

    ``student`` and ``teacher`` (B, n) are divided by their temperatures already; ``is_scored`` (B, n) marks
    the slots that count. A question with fewer than two of them has 0.
    """
    log_student = student.masked_fill(~is_scored, MASKED_SCORE).log_softmax(1)
    log_teacher = teacher.masked_fill(~is_scored, MASKED_SCORE).log_softmax(1)
    return (log_teacher.exp() * (log_teacher - log_student)).masked_fill(~is_scored, 0.0).sum(1)


def margin_mse(student: Tensor, teacher: Tensor, is_scored: Tensor, positive: Tensor) -> Tensor:
    """Of each question the mean squared difference of margins over its scored slots other than the positive,
    (B,).

    A margin is the positive's score minus that of another slot. ``positive`` (B,) is the slot of the
    positive. A question whose positive has no score, or nothing else has one, has 0.
    """
    column = positive[:, None]
    counts = (is_scored & is_scored.gather(1, column)).scatter(1, column, False)
    teacher = teacher.masked_fill(~is_scored, 0.0)
    gap = (student.gather(1, column) - student) - (teacher.gather(1, column) - teacher)
    return gap.square().masked_fill(~counts, 0.0).sum(1) / counts.sum(1).clamp(min=1)


def score_ceiling(settings: ObjectiveSettings, one: Tensor, other: Tensor, pool: Pool) -> Tensor | None:
    """The scores, (B,), above which a rival is masked: those of the pairs of ``one`` and ``other``, (B, D),
    plus the margin."""
    margin = settings.false_negative_margin
    if margin is None:
        return None
    dtype = torch.promote_types(one.dtype, torch.float32)
    scores = torch.einsum("bd,bd->b", one.detach().to(dtype), other.detach().to(dtype))
    return (scores + margin) / pool.temperature.constant()


def own_slots(pool: Pool, num_questions: int) -> Tensor:
    """The vectors of each question's own slots, (B, n, D)."""
    slots = pool.contexts[pool.own_contexts]
    return slots.view(num_questions, -1, slots.shape[1])


def own_scores(questions: Tensor, pool: Pool) -> Tensor:
    """Dot products of each question with its own slots, (B, n), in fp32 at least; not divided by the
    temperature."""
    dtype = torch.promote_types(questions.dtype, torch.float32)
    return torch.bmm(own_slots(pool, len(questions)).to(dtype), questions.to(dtype)[:, :, None])[:, :, 0]


def own_positive(batch: BiEncoderBatch) -> Tensor:
    """Which of its own slots is each question's positive, (B,), on the host."""
    return batch.positive_idx - torch.arange(len(batch)) * (len(batch.context_ids) // len(batch))


def own_candidates(batch: BiEncoderBatch, rule: str) -> tuple[Candidates, Tensor]:
    """What competes with each question among its own slots, by the rules of ``find_candidates``, and its
    other known positives, (B, K).

    Columns count a question's own slots, n where there is none. All on the host.
    """
    target, size = own_positive(batch), len(batch.context_ids) // len(batch)
    valid, column = batch.context_valid.view(-1, size), torch.arange(size)
    is_target = column == target[:, None]
    excluded, extra = ~valid, torch.zeros_like(valid)
    if rule == "distinct":
        ids = batch.context_ids.view(-1, size, 2)
        is_same = are_same(ids[:, :, None], ids[:, None]) & valid[:, None]
        repeats = (is_same & (column[:, None] > column)).any(2)
        positives = is_same[torch.arange(len(batch)), :, target]
        known = (
            are_known(ids[:, :, None], batch.known_positive_ids[:, None])
            & batch.known_positive_valid[:, None]
        ).any(2)
        excluded, extra = excluded | repeats | known | positives, known & valid & ~repeats & ~positives
    masked, others = (torch.where(marks & ~is_target, column, size) for marks in (excluded, extra))
    return Candidates(target, torch.ones(size, dtype=torch.bool), masked, column), others


def competing_questions(pool: Pool, batch: BiEncoderBatch, rule: str) -> Candidates:
    """For the positive of each of this rank's questions: its question among the columns of all Q, and those
    that compete with it.

    With ``distinct`` a question that is known to be answered by the passage does not compete. All on the
    host.
    """
    num_questions = len(pool.questions)
    target = pool.own_questions.start + torch.arange(len(batch))
    everything = torch.ones(num_questions, dtype=torch.bool)
    if rule == "dpr":
        return Candidates(
            target, everything, torch.empty(len(batch), 0, dtype=torch.int64), torch.arange(num_questions)
        )
    assert pool.known_positives is not None, "the loss did not ask for known positives"
    passages, known = batch.context_ids[batch.positive_idx], pool.known_positives
    is_known = known[:, :, 2].bool()
    is_whole = is_known & (known[:, :, 1] == WHOLE_DOCUMENT)
    (by_id, by_text), (known_by_id, known_by_text) = names_of(passages), names_of(known[:, :, :2])
    masked = []
    for of_passage, of_known, counts in (
        (by_id, known_by_id, is_known),
        (by_text, known_by_text, is_known),
        (passages[:, 0].contiguous(), known[:, :, 0], is_whole),
    ):
        ordered, order = of_known[counts].sort()
        knowing = counts.nonzero()[order, 0]
        first, last = (torch.searchsorted(ordered, of_passage, right=right) for right in (False, True))
        place = first[:, None] + torch.arange(int((last - first).max()))
        question = (
            knowing[place.clamp(max=len(knowing) - 1)]
            if len(knowing)
            else torch.full_like(place, num_questions)
        )
        is_rival = (place >= last[:, None]) | (question == target[:, None])
        masked.append(torch.where(is_rival, num_questions, question))
    return Candidates(target, everything, torch.cat(masked, dim=1), torch.arange(num_questions))
