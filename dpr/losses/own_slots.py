"""The context slots of a question's own row, its scores for them, and the place of its positive among them."""

from __future__ import annotations

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch
from dpr.losses.protocol import GlobalBatch


def own_slots(global_batch: GlobalBatch, num_questions: int) -> Tensor:
    """Returns the vectors of each question's own slots, (B, n, D)."""
    slots = global_batch.contexts[global_batch.own_contexts]
    return slots.view(num_questions, -1, slots.shape[1])


def own_scores(questions: Tensor, global_batch: GlobalBatch) -> Tensor:
    """Returns the dot products of each question with its own slots, (B, n), in fp32 at least and not divided
    by the temperature."""
    dtype = torch.promote_types(questions.dtype, torch.float32)
    return torch.bmm(own_slots(global_batch, len(questions)).to(dtype), questions.to(dtype)[:, :, None])[
        :, :, 0
    ]


def own_positive(batch: BiEncoderBatch) -> Tensor:
    """Returns the number, among a question's own slots, of its positive, (B,), on the host."""
    return batch.positive_idx - torch.arange(len(batch)) * (len(batch.context_ids) // len(batch))
