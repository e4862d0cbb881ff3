"""The objective as a weighted sum of terms, each a function of a question and its pool. docs/numerics.md,
section 1, has the formulas.

Letters: B questions of this rank, n own slots of each question, D dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.errors import ConfigError
from dpr.losses.candidates import CANDIDATE_RULES, MASKED_SCORE
from dpr.losses.protocol import GATHERED, OWN_SCORES, Loss, LossResult, Pool, Term
from dpr.losses.settings import ObjectiveSettings
from dpr.losses.terms import (
    Distillation,
    Embedding,
    Guide,
    Nll,
    Symmetric,
    Teacher,
    own_positive,
    own_scores,
)


class Objective(Loss):
    """A weighted sum of terms: those that ``settings`` weigh, then ``user_terms`` with their weights.

    The terms run in the same order with the same operations in every step, whatever the data hold: a question
    without teacher scores has a distillation term of 0, and the divisor of the pool stays Q. ``normalize``:
    vectors have length 1, and so must have their prefixes (``loss.dimensions``). A score matrix of more than
    ``max_scores`` entries is computed in blocks.
    """

    def __init__(
        self,
        settings: ObjectiveSettings,
        *,
        candidates: str = "distinct",
        normalize: bool = False,
        guide: Guide | None = None,
        teacher: Teacher | None = None,
        user_terms: Sequence[tuple[float, Term]] = (),
        max_scores: int = 1 << 22,
    ) -> None:
        if candidates not in CANDIDATE_RULES:
            raise ValueError(f"candidates={candidates!r} is not known, expected 'distinct' or 'dpr'")
        self.settings = settings
        self.candidates = candidates
        self._normalize = normalize
        self.terms: list[tuple[float, Term]] = []
        if settings.nll_weight:
            nll = Nll(guide=guide, threshold=settings.guide_threshold, max_scores=max_scores)
            self.terms.append((settings.nll_weight, nll))
        if settings.symmetric_weight:
            symmetric = Symmetric(candidates=candidates, max_scores=max_scores)
            self.terms.append((settings.symmetric_weight, symmetric))
        if settings.uses_teacher_scores:
            self.terms.append((1.0, Distillation(settings)))  # it weighs its two kinds itself
        if teacher is not None:
            self.terms.append((1.0, Embedding(teacher)))
        self.terms += user_terms
        self._needed = frozenset[str]().union(*(term.needs for _, term in self.terms))
        self.needs = self._needed & GATHERED
        self.reads_passages = any(term.reads_passages for _, term in self.terms)

    def content(self) -> Mapping[str, Any]:
        return {key: value for _, term in self.terms for key, value in term.content().items()}

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> LossResult:
        widths = self.settings.dimensions
        if widths is None:
            return self._sum(questions, pool, batch)
        results = {}
        for width in widths:
            narrow = replace(
                pool,
                contexts=self._prefix(pool.contexts, width),
                questions=self._prefix(pool.questions, width),
            )
            results[width] = self._sum(self._prefix(questions, width), narrow, batch)
        return LossResult(
            _added([result.losses for result in results.values()]), results[max(widths)].correct
        )

    def _prefix(self, vectors: Tensor, width: int) -> Tensor:
        """The first ``width`` dimensions, of length 1 again if the vectors have it."""
        if width == vectors.shape[1]:
            return vectors
        return (
            torch.nn.functional.normalize(vectors[:, :width], dim=1)
            if self._normalize
            else vectors[:, :width]
        )

    def _sum(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> LossResult:
        """The weighted sum of the terms for vectors of one width."""
        if OWN_SCORES in self._needed:
            pool = replace(pool, own_scores=own_scores(questions, pool))
        losses = list[Tensor]()
        correct = None
        for weight, term in self.terms:
            part = term(questions, pool, batch)
            if isinstance(part, LossResult):
                correct = part.correct if correct is None else correct
                part = part.losses
            if not isinstance(part, Tensor) or part.shape != (len(batch),):
                shape = (
                    f"losses of shape {tuple(part.shape)}"
                    if isinstance(part, Tensor)
                    else f"a {type(part).__name__}"
                )
                raise ConfigError(
                    f"the term {type(term).__name__} returned {shape}; expected one loss per question,"
                    f" ({len(batch)},)"
                )
            losses.append(weight * part)
        return LossResult(
            _added(losses), self._own_correct(questions, pool, batch) if correct is None else correct
        )

    def _own_correct(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> Tensor:
        """Which questions rank their positive first among their own slots, (B,)."""
        scores = own_scores(questions, pool) if pool.own_scores is None else pool.own_scores
        valid = on_device(batch.context_valid, scores.device).view_as(scores)
        best = scores.detach().masked_fill(~valid, MASKED_SCORE).argmax(1)
        return best == on_device(own_positive(batch), scores.device)


def _added(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]
