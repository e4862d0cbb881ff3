"""The objective of ``dpr train``: a weighted sum of terms. docs/numerics.md, section 1, has the formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.errors import ConfigError
from dpr.losses.candidates import MASKED_SCORE
from dpr.losses.distillation import Distillation, Embedding, Teacher
from dpr.losses.filtered_nll import Nll, StoredVectors
from dpr.losses.protocol import (
    GATHERED,
    OWN_SCORES,
    GlobalBatch,
    Loss,
    LossResult,
    Term,
    own_positive,
    own_scores,
)
from dpr.losses.settings import ObjectiveSettings
from dpr.losses.symmetric import Symmetric


class Objective(Loss):
    """Weighted sum of terms: those with a weight in ``settings``, then ``user_terms`` with their weights.

    This is the loss of ``dpr train``, set by the ``loss`` node of the configuration. ``loss.dimensions``
    follows "Matryoshka Representation Learning" (Kusupati et al., 2022).

    The terms run in the same order with the same operations in every step, whatever the data hold. A question
    without teacher scores has a distillation term of 0, and the divisor of the global batch stays Q. With
    ``normalize`` vectors have length 1, and prefixes (``loss.dimensions``) are scaled to length 1 as well. A
    score matrix of more than ``max_scores`` entries is computed in blocks.

        >>> loss = Objective(ObjectiveSettings(symmetric_weight=0.5, kl_weight=1))
        >>> [(weight, type(term).__name__) for weight, term in loss.terms]
        [(1.0, 'Nll'), (0.5, 'Symmetric'), (1.0, 'Distillation')]

    Relatives: ``Nll``, ``Symmetric``, ``Distillation`` and ``Embedding`` are its terms. ``BiEncoderNllLoss``
    is the first alone.
    """

    def __init__(
        self,
        settings: ObjectiveSettings,
        *,
        candidates: str = "distinct",
        normalize: bool = False,
        false_negatives: StoredVectors | None = None,
        teacher: Teacher | None = None,
        user_terms: Sequence[tuple[float, Term]] = (),
        max_scores: int = 1 << 22,
    ) -> None:
        self.settings = settings
        self.candidates = candidates
        self._normalize = normalize
        nll = Nll(false_negatives=false_negatives, threshold=settings.guide_threshold, max_scores=max_scores)
        terms: list[tuple[float, Term]] = [
            (settings.nll_weight, nll),
            (settings.symmetric_weight, Symmetric(candidates=candidates, max_scores=max_scores)),
            (float(settings.uses_teacher_scores), Distillation(settings)),  # it weighs its two kinds itself
        ]
        if teacher is not None:
            terms.append((1.0, Embedding(teacher)))
        self.terms = [(weight, term) for weight, term in [*terms, *user_terms] if weight]
        self._needed = frozenset[str]().union(*(term.needs for _, term in self.terms))
        self.needs = self._needed & GATHERED
        self.reads_passages = any(term.reads_passages for _, term in self.terms)

    def content(self) -> Mapping[str, Any]:
        return {key: value for _, term in self.terms for key, value in term.content().items()}

    def __call__(self, questions: Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch) -> LossResult:
        widths = self.settings.dimensions
        if widths is None:
            return self._sum(questions, global_batch, batch)
        losses = list[Tensor]()
        for width in widths:
            narrow = replace(
                global_batch,
                contexts=self._prefix(global_batch.contexts, width),
                questions=self._prefix(global_batch.questions, width),
            )
            result = self._sum(self._prefix(questions, width), narrow, batch)
            losses.append(result.losses)
            if width == max(widths):
                correct = result.correct
        return LossResult(_added(losses), correct)

    def _prefix(self, vectors: Tensor, width: int) -> Tensor:
        """Returns the first ``width`` dimensions, scaled to length 1 if the vectors are."""
        if width < vectors.shape[1]:
            vectors = vectors[:, :width]
            if self._normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
        return vectors

    def _sum(self, questions: Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch) -> LossResult:
        """Returns the weighted sum of the terms for vectors of one width."""
        if OWN_SCORES in self._needed:
            global_batch = replace(global_batch, own_scores=own_scores(questions, global_batch))
        losses = list[Tensor]()
        correct = None
        for weight, term in self.terms:
            part = term(questions, global_batch, batch)
            if isinstance(part, LossResult):
                correct = part.correct if correct is None else correct
                part = part.losses
            if not isinstance(part, Tensor) or part.shape != (len(batch),):
                shape = f"a {type(part).__name__}"
                if isinstance(part, Tensor):
                    shape = f"losses of shape {tuple(part.shape)}"
                raise ConfigError(
                    f"the term {type(term).__name__} returned {shape}; expected one loss per question,"
                    f" ({len(batch)},)"
                )
            losses.append(weight * part)
        if correct is None:  # no term says which questions rank their positive first
            scores = (
                own_scores(questions, global_batch)
                if global_batch.own_scores is None
                else global_batch.own_scores
            )
            valid = on_device(batch.context_valid, scores.device).view_as(scores)
            best = scores.detach().masked_fill(~valid, MASKED_SCORE).argmax(1)
            correct = best == on_device(own_positive(batch), scores.device)
        return LossResult(_added(losses), correct)


def _added(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]
