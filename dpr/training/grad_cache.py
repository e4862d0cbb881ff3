"""Gradient caching: global batches of any size in bounded memory, with their exact gradient.

The chunks of a batch are encoded one after the other, and the loss is computed over all vectors at once. The
gradient of each vector is then passed back through the chunk that made it. For that, the chunk is encoded
again with the same dropout. As many graphs as fit into the budget are kept and not encoded again, so a batch
that fits costs no more than a direct step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import record_function

from dpr.core.batch import BiEncoderBatch, plan_packs, plan_token_batches
from dpr.core.compute_settings import autocast
from dpr.core.distributed import Ranks, copy_from_main, largest_of_each
from dpr.core.seeding import seed_torch
from dpr.losses.protocol import Loss, LossResult
from dpr.models.encoder import Encoder, filler_tokens
from dpr.models.fast.packed import CPU_FORWARD_TOKENS
from dpr.models.towers import Towers
from dpr.training.compute import TRIAL_LENGTH, average, graph_bytes_per_token, set_reduction, sharded_towers
from dpr.training.global_batch_gather import GlobalBatchGather
from dpr.training.step import Step, global_batch_loss, objective_share

# Each chunk costs its calls and adds to the gradient of every weight. In smaller chunks these costs would
# dominate.
MIN_CHUNK_TOKENS = CPU_FORWARD_TOKENS


class _Chunk(NamedTuple):
    """Sequences ``rows`` (on the host) of one side (``question`` or ``ctx``). If ``is_kept``, their graph is
    kept and they are encoded once."""

    side: str
    rows: Tensor
    is_kept: bool


class CachedStep(Step):
    """A step that keeps the graphs of at most ``max_tokens`` tokens in memory at any time. Padding counts if
    towers are padded.

    The vectors of the global batch and their gradients take memory too. If a batch does not fit whole, their
    share is taken from the budget of the graphs. So memory does not grow with the global batch while its
    vectors take less than the budget. Gradients are averaged over ranks once, after the last micro-batch of
    an update. A sequence above the budget is a chunk of its own.
    """

    model: Towers

    def __init__(
        self,
        model: Towers,
        loss: Loss,
        *,
        max_tokens: int,
        ranks: Ranks,
        device: torch.device,
        precision: str = "fp32",
    ) -> None:
        super().__init__(model, loss, ranks=ranks, device=device, precision=precision)
        self.max_tokens = max_tokens
        length = min(TRIAL_LENGTH, model.settings.sequence_length)
        self._bytes_per_token = max(1.0, graph_bytes_per_token(model, length=length, precision=precision))
        copy_from_main(model.parameters())

    def __call__(self, batch: BiEncoderBatch, *, num_batches: int, is_last: bool) -> LossResult:
        batch = batch.to(self.device)
        # Dropout of a chunk depends on the trainer's seed and on the chunk's number, so encoding it again
        # repeats it.
        seed = int(torch.randint(1 << 62, ()))
        chunks = self._agreed(list(self._chunks(batch)))
        gather = GlobalBatchGather(batch, self.loss, self.ranks)
        set_reduction(self.model, False)
        with self._sparse_word_gradients():
            with record_function("dpr/encode"):
                vectors, graphs = self._encode_all(batch, chunks, seed, gather)
            result = global_batch_loss(
                self.loss, vectors["question"], gather, batch, self.model.temperature, self.on_global_batch
            )
            detached = LossResult(result.losses.detach(), result.correct)
            with record_function("dpr/backward"):
                self.scaler.scale(objective_share(result, batch, num_batches)).backward()
                # Backward ends at these leaves. Its only collectives are those of the gather, in the same
                # order on all ranks.
                gradients = {
                    side: of_side.grad for side, of_side in vectors.items() if of_side.grad is not None
                }
                del vectors, result  # only their gradients are needed from here, which take as much memory
                if "ctx" in gradients:
                    gradients["ctx"] = gather.fold(gradients["ctx"], len(batch.contexts))
                self._carry_on(batch, chunks, gradients, graphs, seed)
                if is_last:
                    average(self.model, by_rows=self._by_rows)
        return detached

    def _encode_all(
        self, batch: BiEncoderBatch, chunks: list[_Chunk], seed: int, gather: GlobalBatchGather
    ) -> tuple[dict[str, Tensor], dict[int, Tensor]]:
        """Returns the vectors of the questions and of the context slots, detached, and by chunk number those
        that kept their graph.

        The contexts come first and are sent to the other ranks while the questions are encoded.
        """
        graphs: dict[int, Tensor] = {}
        vectors: dict[str, Tensor] = {}
        for side, size in (("ctx", len(batch.contexts)), ("question", len(batch.questions))):
            of_side = torch.empty(size, self.model.dimension, device=self.device)
            for number, chunk in enumerate(chunks):
                if chunk.side != side:
                    continue
                with torch.set_grad_enabled(chunk.is_kept):
                    encoded = self._encode(batch, chunk, seed, number)
                of_side = of_side.to(encoded.dtype)
                of_side[chunk.rows.to(self.device, non_blocking=True)] = encoded.detach()
                if chunk.is_kept:
                    graphs[number] = encoded
            if side == "ctx":
                # Each distinct vector was needed once, for its slots, and makes room for their gradient. A
                # frozen tower needs no gradient, so none is summed over ranks for it.
                of_side = gather.spread(of_side).requires_grad_(self._is_trained(batch, side))
                gather.send(of_side)
            vectors[side] = of_side
        vectors["question"].requires_grad_()
        return vectors, graphs

    def _carry_on(
        self,
        batch: BiEncoderBatch,
        chunks: list[_Chunk],
        gradients: dict[str, Tensor],
        graphs: dict[int, Tensor],
        seed: int,
    ) -> None:
        """Passes the gradients of the vectors back through the chunks that made them."""
        for table in self._word_tables():
            if table.sparse and table.weight.requires_grad and table.weight.grad is None:
                # sparse gradients are added to a dense one; without it, the sum would stay sparse
                table.weight.grad = torch.zeros_like(table.weight)
        # Kept chunks go first. Backward frees their graphs and makes room for chunks that are encoded again.
        for number in sorted(range(len(chunks)), key=lambda number: number not in graphs):
            chunk = chunks[number]
            if chunk.side in gradients and self._is_trained(batch, chunk.side):
                # A chunk adds to gradients at once, sparse or not. So the sums are taken in the order of
                # chunks, the same each time.
                encoded = graphs.pop(number) if number in graphs else self._encode(batch, chunk, seed, number)
                encoded.backward(gradients[chunk.side][chunk.rows.to(self.device, non_blocking=True)])

    def _encode(self, batch: BiEncoderBatch, chunk: _Chunk, seed: int, number: int) -> Tensor:
        # Seeded before every forward, kept or not, so that the dropout masks repeat whatever was drawn in
        # between.
        seed_torch(seed, number)
        tokens = batch.questions if chunk.side == "question" else batch.contexts
        with autocast(self.device, self._precision):
            if not len(chunk.rows):  # its backward has a gradient of zero
                return self._tower(batch, chunk.side)(filler_tokens(self.device))[:0]
            vectors: Tensor = self._tower(batch, chunk.side)(tokens.select(chunk.rows))
        return vectors

    def _tower(self, batch: BiEncoderBatch, side: str) -> Encoder:
        return self.model.tower(batch.encoder_type or side)

    def _is_trained(self, batch: BiEncoderBatch, side: str) -> bool:
        return any(parameter.requires_grad for parameter in self._tower(batch, side).parameters())

    @contextmanager
    def _sparse_word_gradients(self) -> Iterator[None]:
        """Opens a block in which, on a CPU, the words of a chunk add to their rows of the word table's
        gradient instead of filling a table for each chunk.

        On a GPU filling a table takes no time, and the order of additions does not change.
        """
        tables = self._word_tables() if self.device.type == "cpu" and not sharded_towers(self.model) else []
        for table in tables:
            table.sparse = True
        try:
            yield
        finally:
            for table in tables:
                table.sparse = False

    def _word_tables(self) -> list[nn.Embedding]:
        words = [
            tower.backbone.get_input_embeddings()
            for tower in (self.model.question_model, self.model.ctx_model)
        ]
        by_rows = set(map(id, self._by_rows))  # these are sparse in any case
        return [
            table for table in words if isinstance(table, nn.Embedding) and id(table.weight) not in by_rows
        ]

    def _chunks(self, batch: BiEncoderBatch) -> Iterator[_Chunk]:
        """Yields both sides in chunks, contexts first, in the order in which they are encoded. Sequences of
        similar length are together.

        Chunks whose graph is kept come last on each side, so that little else is encoded while their graphs
        are in memory. Questions are the first to be kept.
        """
        sides = {"question": batch.questions, "ctx": batch.contexts}
        is_packed = {side: self._tower(batch, side).is_packed for side in sides}
        total = sum(
            tokens.tokens.shape[0] if is_packed[side] else tokens.padded_size
            for side, tokens in sides.items()
        )
        limit = self.max_tokens
        room = self.max_tokens
        if total > self.max_tokens:
            # A CPU takes MIN_CHUNK_TOKENS at a time anyway. Chunks that are encoded while graphs are in
            # memory must be small.
            share = 0 if self.device.type == "cpu" else self.max_tokens // 4
            limit = min(self.max_tokens, max(share, MIN_CHUNK_TOKENS))
            room = self.max_tokens - self._vectors_in_tokens(batch)
        plans: dict[str, list[_Chunk]] = {}
        for side, tokens in sides.items():
            lengths = tokens.lengths.cpu().numpy()
            others, kept, size = _cut(
                lengths, room if self._is_trained(batch, side) else 0, is_packed=is_packed[side]
            )
            room -= size
            if is_packed[side]:
                parts = [
                    np.arange(rows.start, rows.stop) for rows in plan_packs(lengths[others].tolist(), limit)
                ]
            else:
                parts = plan_token_batches(lengths[others], limit)
            planned = [(others[rows], False) for rows in parts] + ([(kept, True)] if len(kept) else [])
            plans[side] = [_Chunk(side, torch.from_numpy(rows), is_kept) for rows, is_kept in planned]
        yield from plans["ctx"]
        yield from plans["question"]

    def _agreed(self, chunks: list[_Chunk]) -> list[_Chunk]:
        """Returns, with sharded towers, as many chunks of each kind as the rank with the most of them has.
        Chunks that this rank lacks have no rows."""
        if not sharded_towers(self.model):
            return chunks
        kinds = [(side, is_kept) for side in ("ctx", "question") for is_kept in (False, True)]
        by_kind = [[chunk for chunk in chunks if (chunk.side, chunk.is_kept) == kind] for kind in kinds]
        nothing = torch.zeros(0, dtype=torch.int64)
        for (side, is_kept), own, most in zip(
            kinds, by_kind, largest_of_each([len(own) for own in by_kind]), strict=True
        ):
            own += [_Chunk(side, nothing, is_kept)] * (most - len(own))
        return [chunk for own in by_kind for chunk in own]

    def _vectors_in_tokens(self, batch: BiEncoderBatch) -> int:
        """Returns the number of tokens whose graphs take as much memory as the vectors of the global batch
        and their gradients, in fp32, take on this rank."""
        world_size = self.ranks.world_size
        slots = len(batch.context_row)
        rows = len(batch) + slots * world_size + (slots if world_size > 1 else 0)
        return int(rows * self.model.dimension * 2 * 4 / self._bytes_per_token)


def _cut(lengths: np.ndarray, room: int, *, is_packed: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns the rows, longest first, that do not fit into ``room`` tokens, those that do, and the size of
    the latter. The shortest rows are those that fit, so that little room is left over."""
    order = np.argsort(-lengths, kind="stable")
    shortest = lengths[order[::-1]]
    sizes = np.cumsum(shortest) if is_packed else shortest * np.arange(1, len(lengths) + 1)
    count = int(np.searchsorted(sizes, room, side="right"))
    return order[: len(order) - count], order[len(order) - count :], int(sizes[count - 1]) if count else 0
