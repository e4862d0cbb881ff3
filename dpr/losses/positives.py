"""Several positives of one question in one loss. Mathematics only; docs/numerics.md, section 1, has the formulas.

Letters: B questions, M columns, K other positives at most, D dimensions.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dpr.core.temperature import Temperature
from dpr.losses.candidates import MASKED_SCORE, score_matrix
from dpr.losses.nll import blockwise_nll, in_blocks
from dpr.losses.protocol import LossResult
from dpr.losses.rivals import Rivals


def positives_of_columns(
    kind: str, questions: Tensor, columns: Tensor, rivals: Rivals, others: Tensor, temperature: Temperature, *, max_scores: int
) -> LossResult:
    """The loss of all positives of each question, (B,): its target and ``others`` (B, K), columns of the vectors (M, D), M where none.

    Holds (B, K, D) numbers besides what the negatives need.
    """
    if not in_blocks(questions, columns, max_scores):
        return positives_of_scores(kind, score_matrix(questions, columns, temperature), rivals, others, temperature)
    wanted, negatives = _split(rivals, others, len(columns))
    log_sum, _, best = blockwise_nll(questions, columns, negatives, temperature, max_scores=max_scores)
    dtype = torch.promote_types(questions.dtype, torch.float32)
    vectors = columns.to(dtype)[wanted.clamp(max=len(columns) - 1)]
    scores = torch.bmm(vectors, questions.to(dtype)[:, :, None])[:, :, 0] / temperature
    return _combined(kind, log_sum, best, scores, wanted < len(columns))


def positives_of_scores(kind: str, scores: Tensor, rivals: Rivals, others: Tensor, temperature: Temperature) -> LossResult:
    """As ``positives_of_columns``, from the scores (B, M)."""
    size = scores.shape[1]
    wanted, negatives = _split(rivals, others, size)
    positive_scores = scores.gather(1, wanted.clamp(max=size - 1))
    # A copy, because backward of the positives' scores reads what they were taken from.
    scores = negatives.weighed(negatives.mask_(scores.clone()), temperature.constant())
    return _combined(kind, scores.logsumexp(1), scores.detach().amax(1), positive_scores, wanted < size)


def _split(rivals: Rivals, others: Tensor, size: int) -> tuple[Tensor, Rivals]:
    """The columns of the positives, (B, 1 + K), and what remains when these are taken out: no column is a target."""
    wanted, found = torch.cat([rivals.target[:, None], others], dim=1), rivals.candidates
    left = found._replace(target=torch.full_like(found.target, size), masked=torch.cat([wanted, found.masked], dim=1))
    return wanted, replace(rivals, candidates=left)


def _combined(kind: str, negatives: Tensor, best: Tensor, positives: Tensor, exists: Tensor) -> LossResult:
    """From the log-sum-exp of the negatives (B,), the best of them (B,), and the scores of the positives (B, 1 + K) that exist."""
    masked = positives.masked_fill(~exists, MASKED_SCORE)
    if kind == "any":
        losses = -logsigmoid(masked.logsumexp(1) - negatives)
    else:
        losses = -logsigmoid(positives - negatives[:, None]).masked_fill(~exists, 0.0).sum(1)
    return LossResult(losses, (masked.detach().amax(1) > best).sum())
