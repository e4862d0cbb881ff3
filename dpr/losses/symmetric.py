"""The passage-to-question direction of the contrastive loss. docs/numerics.md, section 1, has the formula.

Letters: B questions of this rank, Q questions of the global batch, at most K known positives
of a question.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.records import WHOLE_DOCUMENT
from dpr.losses.candidates import Candidates, names_of
from dpr.losses.nll import nll_of_columns
from dpr.losses.protocol import KNOWN_POSITIVES, QUESTIONS, GlobalBatch, Term, own_positive, own_slots


class Symmetric(Term):
    """The passage-to-question direction of the contrastive loss: -log softmax of each question among all
    questions of the global batch, given its positive.

    Use it together with ``Nll``, with ``loss.symmetric_weight``, to train both directions. "Learning
    Transferable Visual Models From Natural Language Supervision" (CLIP; Radford et al., 2021) weights both
    directions equally.

        >>> sorted(Symmetric(candidates="distinct", max_scores=1 << 22).needs)
        ['known_positives', 'questions']

    Relative: ``Nll``, the question-to-passage direction.
    """

    def __init__(self, *, candidates: str, max_scores: int) -> None:
        self.candidates = candidates
        self._max_scores = max_scores
        self.needs = frozenset({QUESTIONS, KNOWN_POSITIVES} if candidates == "distinct" else {QUESTIONS})

    def __call__(self, questions: Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch) -> Tensor:
        slots = own_slots(global_batch, len(questions))
        column = on_device(own_positive(batch), questions.device)[:, None, None].expand(-1, 1, slots.shape[2])
        passages = slots.gather(1, column)[:, 0]
        candidates = competing_questions(global_batch, batch, self.candidates).to(questions.device)
        return nll_of_columns(
            passages,
            global_batch.questions,
            candidates,
            global_batch.temperature,
            max_scores=self._max_scores,
        ).losses


def competing_questions(global_batch: GlobalBatch, batch: BiEncoderBatch, rule: str) -> Candidates:
    """Returns, for the positive of each of this rank's questions, the column of its question among all Q and
    the columns that compete with it.

    With ``distinct``, questions that the passage is known to answer do not compete. Everything is on the
    host.
    """
    num_questions = len(global_batch.questions)
    target = global_batch.own_questions.start + torch.arange(len(batch))
    everything = torch.ones(num_questions, dtype=torch.bool)
    if rule == "dpr":
        return Candidates(
            target, everything, torch.empty(len(batch), 0, dtype=torch.int64), torch.arange(num_questions)
        )
    assert global_batch.known_positives is not None, "the loss did not ask for known positives"
    passages = batch.context_ids[batch.positive_idx]
    known = global_batch.known_positives
    is_known = known[:, :, 2].bool()
    is_whole = is_known & (known[:, :, 1] == WHOLE_DOCUMENT)
    (by_id, by_text), (known_by_id, known_by_text) = names_of(passages), names_of(known[:, :, :2])
    masked = []
    for of_passage, of_known, counts in (
        (by_id, known_by_id, is_known),
        (by_text, known_by_text, is_known),
        (passages[:, 0].contiguous(), known[:, :, 0], is_whole),
    ):
        ordered, order = of_known[counts].sort()
        knowing = counts.nonzero()[order, 0]
        first, last = (torch.searchsorted(ordered, of_passage, right=right) for right in (False, True))
        place = first[:, None] + torch.arange(int((last - first).max()))
        question = (
            knowing[place.clamp(max=len(knowing) - 1)]
            if len(knowing)
            else torch.full_like(place, num_questions)
        )
        is_rival = (place >= last[:, None]) | (question == target[:, None])
        masked.append(torch.where(is_rival, num_questions, question))
    return Candidates(target, everything, torch.cat(masked, dim=1), torch.arange(num_questions))
