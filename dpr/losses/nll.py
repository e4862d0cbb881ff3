"""The bi-encoder objective: negative log-likelihood of each question's positive among the candidates of its pool. Mathematics only.

Letters: B questions of this rank, M context slots of the pool, D dimensions. docs/numerics.md derives the scaling and the candidate rules.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch
from dpr.losses.blockwise import blockwise_nll
from dpr.losses.candidates import CANDIDATE_RULES, score_matrix
from dpr.losses.protocol import Loss, LossResult, Pool

# Of a block on a CPU: its scores then stay in the cache, and what is computed beside them is a few MB.
CPU_MAX_SCORES = 1 << 18


class BiEncoderNllLoss(Loss):
    """-log softmax(positive) of each of this rank's questions, among the candidates of the whole pool.

    A score matrix of more than ``max_scores`` entries (on a CPU ``CPU_MAX_SCORES``, if that is less) is never held whole: it is computed
    in blocks, and again in backward.
    Replaces DPR's ``BiEncoderNllLoss``, which computed the whole pool on every rank and obtained 1 / W of the gradient.
    """

    def __init__(self, *, candidates: str = "distinct", max_scores: int = 1 << 22) -> None:
        if candidates not in CANDIDATE_RULES:
            raise ValueError(f"candidates={candidates!r} is not known, expected 'distinct' or 'dpr'")
        self.candidates, self.max_scores = candidates, max_scores

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch | None = None) -> LossResult:
        """Scores this rank's questions (B, D) against the pool's contexts (M, D)."""
        max_scores = min(self.max_scores, CPU_MAX_SCORES) if questions.device.type == "cpu" else self.max_scores
        if len(questions) * len(pool.contexts) > max_scores:
            return LossResult(*blockwise_nll(questions, pool.contexts, pool.candidates, pool.temperature, max_scores=max_scores))
        scores = pool.candidates.mask_(score_matrix(questions, pool.contexts, pool.temperature))
        losses = torch.nn.functional.cross_entropy(scores, pool.candidates.target, reduction="none")
        return LossResult(losses, (scores.argmax(dim=1) == pool.candidates.target).sum())
