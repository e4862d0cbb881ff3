"""The contract of a loss and of its terms: their view of a batch and its global batch,
and what they must return. Mathematics only.

Letters: B questions of this rank, Q questions and M context slots of the global batch, n own slots of each
question, D dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, Temperature
from dpr.losses.candidates import Candidates

CONTEXTS = "contexts"
QUESTIONS = "questions"
KNOWN_POSITIVES = "known_positives"
OWN_SCORES = "own_scores"
GATHERED = frozenset({CONTEXTS, QUESTIONS, KNOWN_POSITIVES})


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """The global batch as the questions of this rank see it.

    ``contexts`` (M, D) are the vectors of all ranks' context slots in rank order, with gradient.
    ``candidates`` says which of these columns count for which of this rank's questions.
    ``scores / global_batch.temperature`` are logits. ``questions`` (Q, D) are all ranks' question vectors.
    ``own_contexts`` and ``own_questions`` are the rows of this rank.

    Vectors that ``Loss.needs`` does not name are those of this rank alone, N slots or B questions; so are
    ``ids`` unless it names ``contexts``. All filled slots are then candidates, and a loss may compare a
    question with its own slots only, since the others depend on the number of ranks.

    ``ids`` (M, 2) are judgement identities, on the host. ``known_positives`` (Q, K, 3), on the host, are the
    identities of the passages known to answer each question; the last column is 1, or 0 for padding.
    ``own_scores`` (B, n) are the dot products of this rank's questions with their own slots, not divided by
    the temperature. The last two are None unless a term needs them.
    """

    contexts: Tensor
    candidates: Candidates
    temperature: Temperature
    questions: Tensor
    own_contexts: slice
    own_questions: slice
    ids: Tensor
    known_positives: Tensor | None = None
    own_scores: Tensor | None = None


class LossResult(NamedTuple):
    """Result for this rank's questions.

    ``losses`` is (B,). ``correct`` is (B,), whether each question ranks its positive first, or (), the number
    that do.
    """

    losses: Tensor
    correct: Tensor

    @property
    def num_questions(self) -> int:
        return len(self.losses)

    @property
    def loss(self) -> Tensor:
        """Returns the sum over the questions, ()."""
        return self.losses.sum()

    @property
    def num_correct(self) -> Tensor:
        """Returns the number of questions that rank their positive first, ()."""
        return self.correct.sum()


class Term(ABC):
    """A term of the objective. ``loss.terms=[nll,module:Class]`` takes user-defined ones (docs/extending.md).

    ``needs`` names the inputs that it reads in addition to its own rows: any of ``contexts``, ``questions``
    and ``known_positives``, which are gathered from all ranks, and ``own_scores``. ``candidates`` is the
    candidate rule, ``distinct`` or ``dpr`` (docs/numerics.md, section 3); the configuration sets it.

    An implementation must promise:

    * One loss for each of this rank's questions, a function of that question, its global batch and its row of
      the batch. It does not depend on how the global batch is spread over ranks. It is not divided by B, Q or
      the number of ranks: the step weights the losses and takes (W / Q) times their sum, so that the mean
      over ranks is the gradient of the global batch's mean (docs/numerics.md, section 2).
    * The same operations on every rank and in every step, whatever the values. Backward through gathered
      tensors is a collective: if one rank leaves a gathered tensor out of its graph, the others are left
      waiting.
    * No waiting for the device: no ``.item()``, ``nonzero``, ``unique`` or boolean index on vectors or on
      values computed from them. Autocast is off when a term is called.
    * No tensor and no state after it returns: gradient caching frees the vectors, and checkpoints do not
      store a loss. It has no parameters; they would not be trained.
    """

    needs: frozenset[str] = frozenset()
    candidates: str = "distinct"
    reads_passages: bool = True
    """False if its losses do not depend on passage vectors. If this holds for all terms, passages are not
    encoded."""

    @abstractmethod
    def __call__(
        self, questions: Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch
    ) -> Tensor | LossResult:
        """Returns the losses (B,) of this rank's question vectors (B, D). ``batch`` is this rank's share of
        the global batch (``BiEncoderBatch``)."""

    def content(self) -> Mapping[str, Any]:
        """Returns the content of the files that its values depend on, as JSON by the names of settings. A run
        can only be resumed with the same content."""
        return {}


class Loss(Term):
    """The function that training minimizes, with the promises of a term. ``loss.name=module:Class`` takes a
    user-defined one (docs/extending.md).

    ``needs`` may not name ``own_scores``, which an objective computes for its terms.
    """

    needs: frozenset[str] = frozenset({CONTEXTS})

    @abstractmethod
    def __call__(self, questions: Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch) -> LossResult:
        """Returns the losses as a term does, and which questions rank their positive first."""


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
