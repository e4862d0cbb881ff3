"""The bi-encoder objective: negative log-likelihood of each question's positive among the candidates of its pool. Mathematics only.

Letters: B questions of this rank, M context slots of the pool, K known positives per question, D dimensions. docs/numerics.md derives
the scaling and the candidate rules.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dpr.core.batch import ContextVectors
from dpr.losses.blockwise import blockwise_nll
from dpr.losses.candidates import Candidates, distinct_candidates, score_matrix, slot_candidates

# Of a block on a CPU: its scores then stay in the cache, and what is computed beside them is a few MB.
CPU_MAX_SCORES = 1 << 18


class LossResult(NamedTuple):
    """``losses`` (B,) is -log p(positive) of each of this rank's questions; ``num_correct`` () how many rank their positive first."""

    losses: Tensor
    num_correct: Tensor

    @property
    def loss(self) -> Tensor:
        """The sum over the questions, ()."""
        return self.losses.sum()


class BiEncoderNllLoss:
    """-log softmax(positive) of each of this rank's questions, among the candidates of the whole pool.

    ``candidates`` is ``distinct`` (a passage counts once, other known positives are masked) or ``dpr`` (every slot counts). The caller
    multiplies their sum by W / Q so that the mean over ranks, which data-parallel training takes, is the gradient of the pool's mean.
    A score matrix of more than ``max_scores`` entries (on a CPU ``CPU_MAX_SCORES``, if that is less) is never held whole: it is computed
    in blocks, and again in backward.
    Replaces DPR's ``BiEncoderNllLoss``, which computed the whole pool on every rank and obtained 1 / W of the gradient.
    """

    def __init__(self, *, candidates: str = "distinct", max_scores: int = 1 << 22) -> None:
        if candidates not in ("distinct", "dpr"):
            raise ValueError(f"candidates={candidates!r} is not known, expected 'distinct' or 'dpr'")
        self.candidates, self.max_scores = candidates, max_scores

    def find_candidates(
        self, positive_idx: Tensor, valid: Tensor, ids: Tensor, known_positive_ids: Tensor, known_positive_valid: Tensor
    ) -> Candidates:
        """Which columns of the score matrix count for which question; ``positive_idx`` counts in the pool's columns."""
        if self.candidates == "dpr":
            return slot_candidates(positive_idx, valid)
        return distinct_candidates(positive_idx, valid, ids, known_positive_ids, known_positive_valid)

    def __call__(
        self,
        questions: Tensor,
        contexts: ContextVectors,
        positive_idx: Tensor,
        known_positive_ids: Tensor,
        known_positive_valid: Tensor,
        temperature: Tensor | float = 1.0,
    ) -> LossResult:
        """Scores this rank's questions (B, D) against the pool's contexts (M, D)."""
        candidates = self.find_candidates(positive_idx, contexts.valid, contexts.ids, known_positive_ids, known_positive_valid)
        max_scores = min(self.max_scores, CPU_MAX_SCORES) if questions.device.type == "cpu" else self.max_scores
        if len(questions) * len(contexts.vectors) > max_scores:
            return LossResult(*blockwise_nll(questions, contexts.vectors, candidates, temperature, max_scores=max_scores))
        scores = candidates.mask_(score_matrix(questions, contexts.vectors, temperature))
        losses = torch.nn.functional.cross_entropy(scores, candidates.target, reduction="none")
        return LossResult(losses, (scores.argmax(dim=1) == candidates.target).sum())
