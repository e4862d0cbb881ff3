"""A question's own slots: its positive and the negatives that the data list for it. Nothing of other ranks is needed.

Letters: B questions of this rank, n slots of each, D dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch
from dpr.losses.candidates import Candidates
from dpr.losses.protocol import Pool


def own_slots(pool: Pool, num_questions: int) -> Tensor:
    """The vectors of each question's own slots, (B, n, D)."""
    slots = pool.contexts[pool.own_contexts]
    return slots.view(num_questions, -1, slots.shape[1])


def own_scores(questions: Tensor, pool: Pool) -> Tensor:
    """Dot products of each question with its own slots, (B, n), in fp32 at least; not divided by the temperature."""
    dtype = torch.promote_types(questions.dtype, torch.float32)
    return torch.bmm(own_slots(pool, len(questions)).to(dtype), questions.to(dtype)[:, :, None])[:, :, 0]


def own_positive(batch: BiEncoderBatch) -> Tensor:
    """Which of its own slots is each question's positive, (B,), on the host."""
    return batch.positive_idx - torch.arange(len(batch)) * (len(batch.context_ids) // len(batch))


def own_candidates(batch: BiEncoderBatch, rule: str, suspects: Tensor | None = None) -> tuple[Candidates, Tensor]:
    """What competes with each question among its own slots, by the rules of ``find_candidates``, and its other known positives, (B, K).

    Columns count a question's own slots, n where there is none. ``suspects`` (B, n) bool are left out too. All on the host.
    """
    target, size = own_positive(batch), len(batch.context_ids) // len(batch)
    valid, column = batch.context_valid.view(-1, size), torch.arange(size)
    is_target = column == target[:, None]
    excluded, extra = ~valid, torch.zeros_like(valid)
    if rule == "distinct":
        ids = batch.context_ids.view(-1, size, 2)
        is_same = (ids[:, :, None] == ids[:, None]).all(-1) & valid[:, None]
        repeats = (is_same & (column[:, None] > column)).any(2)
        positives = is_same[torch.arange(len(batch)), :, target]
        known = ((ids[:, :, None] == batch.known_positive_ids[:, None]).all(-1) & batch.known_positive_valid[:, None]).any(2)
        excluded, extra = excluded | repeats | known | positives, known & valid & ~repeats & ~positives
    if suspects is not None:
        excluded = excluded | suspects
    masked, others = (torch.where(marks & ~is_target, column, size) for marks in (excluded, extra))
    return Candidates(target, torch.ones(size, dtype=torch.bool), masked), others
