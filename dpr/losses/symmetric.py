"""The question that a passage answers, among all questions of the pool. docs/numerics.md, section 1.

Letters: B questions of this rank, Q questions of the pool, K known positives at most.
"""

from __future__ import annotations

import torch

from dpr.core.batch import BiEncoderBatch
from dpr.losses.candidates import Candidates
from dpr.losses.protocol import Pool


def competing_questions(pool: Pool, batch: BiEncoderBatch, rule: str) -> Candidates:
    """For the positive of each of this rank's questions: its question among the columns of all Q, and those that compete with it.

    With ``distinct`` a question that is known to be answered by the passage does not compete. All on the host.
    """
    num_questions = len(pool.questions)
    target = pool.own_questions.start + torch.arange(len(batch))
    everything = torch.ones(num_questions, dtype=torch.bool)
    if rule == "dpr":
        return Candidates(target, everything, torch.empty(len(batch), 0, dtype=torch.int64))
    assert pool.known_positives is not None, "the loss did not ask for known positives"
    passages, known = batch.context_ids[batch.positive_idx], pool.known_positives
    _, label = torch.unique(torch.cat([passages, known[:, :, :2].reshape(-1, 2)]), dim=0, return_inverse=True)
    of_passage, of_known = label[: len(batch)], torch.where(known[:, :, 2].bool().flatten(), label[len(batch) :], -1)
    order = torch.argsort(of_known, stable=True)
    first, last = (torch.searchsorted(of_known[order], of_passage, right=right) for right in (False, True))
    place = first[:, None] + torch.arange(max(1, int((last - first).max())))
    question = order[place.clamp(max=len(order) - 1)] // known.shape[1] if len(order) else torch.full_like(place, num_questions)
    is_rival = (place >= last[:, None]) | (question == target[:, None])
    return Candidates(target, everything, torch.where(is_rival, num_questions, question))
