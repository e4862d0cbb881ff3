"""A question's own slots: its positive and the negatives that the data list for it. Nothing of other ranks is needed.

Letters: B questions of this rank, n slots of each, D dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch
from dpr.losses.protocol import Pool


def own_scores(questions: Tensor, pool: Pool) -> Tensor:
    """Dot products of each question with its own slots, (B, n), in fp32 at least; not divided by the temperature."""
    slots = pool.contexts[pool.own_contexts]
    dtype = torch.promote_types(questions.dtype, torch.float32)
    by_question = slots.to(dtype).view(len(questions), -1, slots.shape[1])
    return torch.bmm(by_question, questions.to(dtype)[:, :, None])[:, :, 0]


def own_positive(batch: BiEncoderBatch) -> Tensor:
    """Which of its own slots is each question's positive, (B,), on the host."""
    return batch.positive_idx - torch.arange(len(batch)) * (len(batch.context_ids) // len(batch))
