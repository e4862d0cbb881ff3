"""The bi-encoder objective: negative log-likelihood of each question's positive among the candidates of its pool. Mathematics only.

Letters: B questions of this rank, M context slots of the pool, K known positives per question, D dimensions. docs/numerics.md derives
the scaling and the candidate rules.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dpr.core.batch import ContextVectors

# Large enough to vanish in a softmax, small enough that fp32 arithmetic on it stays finite.
MASKED_SCORE = -1e30


class Candidates(NamedTuple):
    """What a question competes with: ``target`` (B,) is the column of its positive, ``excluded`` (B, M) marks columns that do not count."""

    target: Tensor
    excluded: Tensor


class LossResult(NamedTuple):
    """``loss`` is the sum over this rank's questions of -log p(positive); ``num_correct`` how many rank their positive first."""

    loss: Tensor
    num_correct: Tensor


def slot_candidates(positive_idx: Tensor, valid: Tensor) -> Candidates:
    """DPR's rule: every slot counts as often as it appears."""
    return Candidates(positive_idx, ~valid[None, :].expand(positive_idx.shape[0], -1))


def distinct_candidates(
    positive_idx: Tensor, valid: Tensor, ids: Tensor, known_positive_ids: Tensor, known_positive_valid: Tensor
) -> Candidates:
    """Each passage counts once (at its first slot; positives are moved there); other known positives of a question do not count against it.

    ``positive_idx`` (B,), ``valid`` (M,), ``ids`` (M, 2), ``known_positive_ids`` (B, K, 2), ``known_positive_valid`` (B, K).
    """
    num_slots, (num_questions, num_known) = ids.shape[0], known_positive_valid.shape
    _, label = torch.unique(torch.cat([ids, known_positive_ids.reshape(-1, 2)]), dim=0, return_inverse=True)
    num_labels = int(label.shape[0])
    slot_label, known_label = label[:num_slots], label[num_slots:].reshape(num_questions, num_known)

    column = torch.arange(num_slots, device=ids.device)
    first = torch.full((num_labels,), num_slots, dtype=torch.int64, device=ids.device)
    first.scatter_reduce_(0, slot_label[valid], column[valid], reduce="amin")
    target = first[slot_label[positive_idx]]
    counts = valid & (first[slot_label] == column)

    # One spare column takes what is only padding of the (B, K) table.
    known = torch.zeros(num_questions, num_labels + 1, dtype=torch.bool, device=ids.device)
    known.scatter_(1, torch.where(known_positive_valid, known_label, num_labels), True)
    answers = known[:, slot_label] & (column[None, :] != target[:, None])
    return Candidates(target, ~counts[None, :] | answers)


def score_matrix(questions: Tensor, contexts: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """Dot products divided by the temperature, (B, M), in fp32 at least whatever autocast says."""
    with torch.autocast(questions.device.type, enabled=False):
        dtype = torch.promote_types(questions.dtype, torch.float32)
        return questions.to(dtype) @ contexts.to(dtype).T / temperature


class BiEncoderNllLoss:
    """Mean over the pool of -log softmax(positive), as a sum over this rank's share of it.

    ``candidates`` is ``distinct`` (a passage counts once, other known positives are masked) or ``dpr`` (every slot counts). The caller
    multiplies by W / Q so that the mean over ranks, which data-parallel training takes, is the gradient of the pool's mean.
    Replaces DPR's ``BiEncoderNllLoss``, which computed the whole pool on every rank and obtained 1 / W of the gradient.
    """

    def __init__(self, *, candidates: str = "distinct") -> None:
        if candidates not in ("distinct", "dpr"):
            raise ValueError(f"candidates={candidates!r} is not known, expected 'distinct' or 'dpr'")
        self.candidates = candidates

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
        target, excluded = self.find_candidates(positive_idx, contexts.valid, contexts.ids, known_positive_ids, known_positive_valid)
        scores = score_matrix(questions, contexts.vectors, temperature).masked_fill(excluded, MASKED_SCORE)
        loss = torch.nn.functional.cross_entropy(scores, target, reduction="sum")
        return LossResult(loss, (scores.argmax(dim=1) == target).sum())
