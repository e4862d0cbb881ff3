"""The pool's contexts, gathered from all ranks while this rank computes.

1. Before the towers run, what does not depend on them sets off: judgement ids and validity of the slots, as one tensor.
2. The vectors set off when the context tower is done; the question tower runs meanwhile.
3. The loss waits for both.
4. In backward the gradient's sum over ranks sets off first; the question tower's backward runs meanwhile (``start_gather``).

Ranks meet in these collectives and in those of data-parallel training, and wait for ever where two ranks start them in different orders.
They cannot: all ranks run the same program (a pool's ``encoder_type`` is that of all ranks, N is equal by construction, and which towers
are trained is a setting), forward starts 1 and 2 at the same place in it, and backward visits a graph of the same form in the order in
which it was made, last first, so that 4 comes before the gradients of any tower.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, ContextVectors
from dpr.core.distributed import PendingRows, start_gather


class PoolGather:
    """Joins the N context slots of every rank into the pool of M = W*N, in rank order; with one rank the identity.

    Making it starts step 1, ``start`` or ``send`` step 2; each is called once a micro-batch, in this order. Gradients pass through:
    backward sums over ranks and returns this rank's rows (docs/numerics.md, section 2). Replaces DPR's gather of pickled vectors.
    """

    def __init__(self, batch: BiEncoderBatch) -> None:
        self._context_row = batch.context_row
        self._facts = start_gather(torch.cat([batch.context_ids, batch.context_valid[:, None].to(torch.int64)], dim=1))
        self._vectors: PendingRows | None = None

    def start(self, contexts: Tensor) -> None:
        """Spreads the vectors of this rank's distinct contexts (C, D) over the slots (N, D) that list them, and sends them off."""
        self.send(self.spread(contexts))

    def spread(self, contexts: Tensor) -> Tensor:
        """(C, D) -> (N, D)."""
        return contexts[self._context_row]

    def fold(self, slots: Tensor, num_contexts: int) -> Tensor:
        """The gradient of ``spread``, (N, D) -> (C, D): of each context the sum over the slots that list it."""
        return slots.new_zeros(num_contexts, slots.shape[1]).index_put_((self._context_row,), slots, accumulate=True)

    def send(self, slots: Tensor) -> None:
        """Sends the vectors of the slots (N, D) off."""
        self._vectors = start_gather(slots)

    def wait(self) -> ContextVectors:
        """The pool: vectors (M, D), valid (M,), ids (M, 2)."""
        assert self._vectors is not None, "the vectors were not started"
        facts, vectors = self._facts.wait(), self._vectors.wait()
        self._vectors = None  # they are the caller's, who may be done with them before this object
        return ContextVectors(vectors, facts[:, 2].bool(), facts[:, :2])
