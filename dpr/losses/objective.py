"""The objective as a weighted sum of terms, each a function of a question and its pool. docs/numerics.md, section 1, has the formulas.

Letters: B questions of this rank, M context slots of the pool, n own slots of each question, D dimensions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.losses.candidates import CANDIDATE_RULES
from dpr.losses.nll import nll_of_columns, nll_of_scores
from dpr.losses.own_slots import own_candidates, own_positive, own_scores, own_slots
from dpr.losses.positives import positives_of_columns, positives_of_scores
from dpr.losses.protocol import CONTEXTS, KNOWN_POSITIVES, QUESTIONS, Loss, LossResult, Pool
from dpr.losses.rivals import GuideVectors, Rivals
from dpr.losses.settings import ObjectiveSettings
from dpr.losses.symmetric import competing_questions
from dpr.losses.teacher import Teacher

if TYPE_CHECKING:  # it reads vector shards; an objective without one needs none
    from dpr.losses.guide import Guide


class Objective(Loss):
    """A weighted sum of terms; terms of weight 0 are neither computed nor gathered for.

    The terms run in the same order with the same operations in every step, whatever the data hold: a question without teacher scores has
    a distillation term of 0, and the divisor of the pool stays Q. ``normalize``: vectors have length 1, and so must have their prefixes
    (``loss.dimensions``). A score matrix of more than ``max_scores`` entries is computed in blocks.
    """

    def __init__(
        self,
        settings: ObjectiveSettings,
        *,
        candidates: str = "distinct",
        normalize: bool = False,
        guide: Guide | None = None,
        max_scores: int = 1 << 22,
    ) -> None:
        if candidates not in CANDIDATE_RULES:
            raise ValueError(f"candidates={candidates!r} is not known, expected 'distinct' or 'dpr'")
        self.settings, self.candidates, self.max_scores = settings, candidates, max_scores
        self._normalize, self._guide, self._teacher = normalize, guide, Teacher(settings)
        needs = {CONTEXTS} if settings.nll_weight and settings.in_batch_negatives else set[str]()
        if settings.symmetric_weight:
            needs |= {QUESTIONS, KNOWN_POSITIVES} if candidates == "distinct" else {QUESTIONS}
        self.needs = frozenset(needs)

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> LossResult:
        widths = self.settings.dimensions
        if widths is None:
            return self._terms(questions, pool, batch)
        weights = self.settings.dimension_weights or [1.0] * len(widths)
        results = {}
        for width, weight in zip(widths, weights, strict=True):
            narrow = replace(pool, contexts=self._prefix(pool.contexts, width), questions=self._prefix(pool.questions, width))
            result = self._terms(self._prefix(questions, width), narrow, batch)
            results[width] = LossResult(weight * result.losses, result.num_correct)
        return LossResult(_sum([result.losses for result in results.values()]), results[max(widths)].num_correct)

    def _prefix(self, vectors: Tensor, width: int) -> Tensor:
        """The first ``width`` dimensions, of length 1 again if the vectors have it."""
        if width == vectors.shape[1]:
            return vectors
        return torch.nn.functional.normalize(vectors[:, :width], dim=1) if self._normalize else vectors[:, :width]

    def _terms(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> LossResult:
        """The weighted sum of the terms for vectors of one width."""
        settings, losses, num_correct = self.settings, list[Tensor](), None
        # Of each question with its own slots; what needs more, gathers more.
        scores = own_scores(questions, pool) if self._uses_own_scores else None
        if settings.nll_weight:
            if scores is not None and not settings.in_batch_negatives:
                nll = self._nll_of_own(scores, pool, batch)
            else:
                nll = self._nll_of_pool(questions, pool)
            losses.append(settings.nll_weight * nll.losses)
            num_correct = nll.num_correct
        if settings.symmetric_weight:
            losses.append(settings.symmetric_weight * self._symmetric(questions, pool, batch))
        if scores is not None and settings.uses_teacher:
            losses.append(self._teacher(scores, pool.temperature, batch))
        if scores is not None and num_correct is None:
            candidates = own_candidates(batch, self.candidates)[0].to(scores.device)
            num_correct = (candidates.mask_(scores.detach().clone()).argmax(1) == candidates.target).sum()
        assert num_correct is not None
        return LossResult(_sum(losses), num_correct)

    @property
    def _uses_own_scores(self) -> bool:
        settings = self.settings
        return settings.uses_teacher or not settings.nll_weight or not settings.in_batch_negatives

    def _nll_of_pool(self, questions: Tensor, pool: Pool) -> LossResult:
        """The NLL among the candidates of the pool, (B,)."""
        settings, found = self.settings, pool.candidates
        guide = None
        if self._guide is not None:
            vectors = on_device(self._guide.vectors(pool.ids), questions.device)
            guide = GuideVectors(vectors[found.target], vectors, settings.guide_threshold)
        rivals = Rivals(found, self._ceiling(questions, pool.contexts[found.target], pool), guide, settings.hardness)
        size = self.max_scores
        if settings.positives == "one":
            return nll_of_columns(questions, pool.contexts, rivals, pool.temperature, max_scores=size)
        return positives_of_columns(settings.positives, questions, pool.contexts, rivals, found.masked, pool.temperature, max_scores=size)

    def _nll_of_own(self, scores: Tensor, pool: Pool, batch: BiEncoderBatch) -> LossResult:
        """The NLL among the own slots of each question, (B,), from its scores for them, (B, n)."""
        settings, suspects = self.settings, None
        if self._guide is not None:
            vectors = self._guide.vectors(batch.context_ids).view(*scores.shape, -1)
            positives = vectors[torch.arange(len(batch)), own_positive(batch)]
            suspects = torch.bmm(vectors, positives[:, :, None])[:, :, 0] > settings.guide_threshold
        candidates, others = own_candidates(batch, self.candidates, suspects)
        candidates, scores = candidates.to(scores.device), scores / pool.temperature
        ceiling = None
        if settings.false_negative_margin is not None:
            positive_scores = scores.detach().gather(1, candidates.target[:, None])[:, 0]
            ceiling = positive_scores + settings.false_negative_margin / pool.temperature.constant()
        rivals = Rivals(candidates, ceiling, hardness=settings.hardness)
        if settings.positives == "one":
            return nll_of_scores(scores, rivals, pool.temperature)
        return positives_of_scores(settings.positives, scores, rivals, on_device(others, scores.device), pool.temperature)

    def _symmetric(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> Tensor:
        """-log softmax of each question among all questions of the pool, given its positive, (B,)."""
        slots = own_slots(pool, len(questions))
        column = on_device(own_positive(batch), questions.device)[:, None, None].expand(-1, 1, slots.shape[2])
        passages = slots.gather(1, column)[:, 0]
        candidates = competing_questions(pool, batch, self.candidates).to(questions.device)
        rivals = Rivals(candidates, self._ceiling(passages, questions, pool), hardness=self.settings.hardness)
        return nll_of_columns(passages, pool.questions, rivals, pool.temperature, max_scores=self.max_scores).losses

    def _ceiling(self, one: Tensor, other: Tensor, pool: Pool) -> Tensor | None:
        """The scores, (B,), above which a rival is masked: those of the pairs of ``one`` and ``other``, (B, D), plus the margin."""
        margin = self.settings.false_negative_margin
        if margin is None:
            return None
        dtype = torch.promote_types(one.dtype, torch.float32)
        scores = torch.einsum("bd,bd->b", one.detach().to(dtype), other.detach().to(dtype))
        return (scores + margin) / pool.temperature.constant()


def _sum(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]
