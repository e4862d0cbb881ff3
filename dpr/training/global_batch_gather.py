"""The global batch of a micro-batch: the inputs that the loss needs from all ranks,
gathered while this rank computes.

1. Before the towers run, the facts that do not depend on them are sent. They are the judgement ids and the
   validity of the slots, one tensor on the host. If the loss needs them, the known positives of the questions
   follow, once the ranks have agreed on their shape.
2. The context vectors are sent when the context tower is done, while the question tower runs.
3. The question vectors are sent after both, if the loss needs them.
4. The host waits for the facts and finds the candidates while a GPU is still busy with the towers. An
   asynchronous copy moves the index tensors to the device. Then the loss waits for the vectors, on the
   device.
5. Backward starts the sums of gradients over ranks first, those of the questions before those of the
   contexts. The backward of the question tower runs while those of the contexts are sent (``start_gather``).

These collectives and those of data-parallel training would deadlock if two ranks started them in different
orders. They cannot, because all ranks run the same program: the ``encoder_type`` of a global batch is that of
all ranks, N is equal by construction, and which towers are trained and what the loss needs are settings.
Forward starts 1 to 3 at the same place in it. Backward visits a graph of the same form in the reverse order
of its making, so 5 comes before the gradients of any tower. Facts are sent between hosts (gloo) and vectors
between GPUs (NCCL), so these two do not interfere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, Temperature
from dpr.core.distributed import Ranks, largest_over_ranks, start_gather
from dpr.losses.candidates import find_candidates
from dpr.losses.protocol import CONTEXTS, KNOWN_POSITIVES, QUESTIONS, GlobalBatch, Loss


class GlobalBatchGather:
    """Gather of the N context slots of every rank into the M = W*N slots of the global batch, in rank order.
    With one rank it is the identity.

    The constructor does step 1, ``start`` or ``send`` step 2, ``global_batch`` the rest. Each is called once per
    micro-batch, in this order. Gradients pass through: backward sums over ranks and returns this rank's rows
    (docs/numerics.md, section 2). Inputs that ``loss.needs`` does not name are not gathered. Replaces DPR's
    gather of pickled vectors.
    """

    def __init__(self, batch: BiEncoderBatch, loss: Loss, ranks: Ranks) -> None:
        self._batch = batch
        self._loss = loss
        self._ranks = ranks
        self._metadata = self._sent(
            torch.cat([batch.context_ids, batch.context_valid[:, None].to(torch.int64)], dim=1), CONTEXTS
        )
        self._known = (
            self._sent(self._known_positives(), KNOWN_POSITIVES) if KNOWN_POSITIVES in loss.needs else None
        )
        self._vectors: Callable[[], Tensor] | None = None

    def start(self, contexts: Tensor) -> None:
        """Copies the vectors of this rank's distinct contexts (C, D) to the slots (N, D) that list them, and
        sends them."""
        self.send(self.spread(contexts))

    def spread(self, contexts: Tensor) -> Tensor:
        """Returns the vectors of the slots (N, D) from those of the distinct contexts (C, D)."""
        return contexts[self._batch.context_row]

    def fold(self, slots: Tensor, num_contexts: int) -> Tensor:
        """Returns the gradient of ``spread``, (N, D) -> (C, D): for each context, the sum over the slots that
        list it."""
        return slots.new_zeros(num_contexts, slots.shape[1]).index_put_(
            (self._batch.context_row,), slots, accumulate=True
        )

    def send(self, slots: Tensor) -> None:
        """Sends the vectors of the slots (N, D)."""
        self._vectors = self._sent(slots, CONTEXTS)

    def global_batch(self, questions: Tensor, temperature: Temperature) -> GlobalBatch:
        """Returns the global batch for this rank's question vectors (B, D)."""
        assert self._vectors is not None, "the vectors were not started"
        batch = self._batch
        pending = self._sent(questions, QUESTIONS)
        metadata = self._metadata()
        own_contexts = self._own(len(batch.context_ids), CONTEXTS)
        own_questions = self._own(len(batch), QUESTIONS)
        candidates = find_candidates(
            self._loss.candidates
            if CONTEXTS in self._loss.needs
            else "dpr",  # which slots of a single rank are distinct depends on the number of ranks
            batch.positive_idx + own_contexts.start,
            metadata[:, 2].bool(),
            metadata[:, :2],
            batch.known_positive_ids,
            batch.known_positive_valid,
        ).to(questions.device)
        # Waiting in this order fixes the order of backward's collectives, which is the reverse: equal on all
        # ranks.
        contexts = self._vectors()
        all_questions = pending()
        self._vectors = None  # the caller may free them before this object
        known = self._known() if self._known else None
        return GlobalBatch(
            contexts,
            candidates,
            temperature,
            all_questions,
            own_contexts,
            own_questions,
            metadata[:, :2],
            known,
        )

    def _known_positives(self) -> Tensor:
        """Returns identities and validity of this rank's known positives, (B, K, 3), with the K of the rank
        that has most."""
        batch = self._batch
        own = torch.cat(
            [batch.known_positive_ids, batch.known_positive_valid[:, :, None].to(torch.int64)], dim=2
        )
        most = largest_over_ranks(own.shape[1])
        return torch.cat([own, own.new_zeros(len(own), most - own.shape[1], 3)], dim=1)

    def _sent(self, rows: Tensor, what: str) -> Callable[[], Tensor]:
        return start_gather(rows) if what in self._loss.needs else lambda: rows

    def _own(self, size: int, what: str) -> slice:
        start = self._ranks.rank * size if what in self._loss.needs else 0
        return slice(start, start + size)
