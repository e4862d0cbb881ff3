"""Gradient caching: pools of any size in bounded memory, with the gradient of the whole pool.

The chunks of a batch are encoded one after the other; the loss is taken over all vectors at once; its gradient with respect to each vector
is then carried on through the chunk that made it, which for that is encoded again, with the same dropout. Chunks whose graphs fit into
the budget are kept and not encoded again, so a batch that fits costs no more than a direct step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks, average_gradients, copy_from_main
from dpr.core.seeding import seed_torch
from dpr.data.packing import plan_packs, plan_token_batches
from dpr.losses.nll import BiEncoderNllLoss
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from dpr.training.pool_gather import PoolGather
from dpr.training.step import PRECISIONS, StepResult, objective_share, pool_loss

# Backward makes a gradient as large as the word table for every chunk; smaller chunks would spend their time on that.
MIN_CHUNK_TOKENS = 2048


class _Chunk(NamedTuple):
    """Sequences ``rows`` of one side (``question`` or ``ctx``); ``size`` is the number of tokens that are computed for them."""

    side: str
    rows: Tensor
    size: int


class CachedStep:
    """A step that holds the graphs of at most ``max_tokens`` tokens (padding included where towers are padded) at any time.

    Gradients are averaged over ranks once, after the last micro-batch of an update. A sequence above the budget is a chunk of its own.
    """

    def __init__(
        self, model: BiEncoder, loss: BiEncoderNllLoss, *, max_tokens: int, ranks: Ranks, device: torch.device, precision: str = "fp32"
    ) -> None:
        self.model, self.loss, self.max_tokens, self.ranks, self.device = model, loss, max_tokens, ranks, device
        self._autocast_dtype = PRECISIONS[precision]
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        copy_from_main(model.parameters())

    def __call__(self, batch: BiEncoderBatch, *, num_pools: int, is_last: bool) -> StepResult:
        batch = batch.to(self.device)
        # Dropout of a chunk depends on what the trainer has seeded and on the chunk's number, so that encoding it again repeats it.
        seed = int(torch.randint(1 << 62, ()))
        chunks, gather = list(self._chunks(batch)), PoolGather(batch)
        with record_function("dpr/encode"):
            vectors, graphs = self._encode_all(batch, chunks, seed, gather)
        learned = self.model.log_temperature
        temperature = self.model.options.temperature if learned is None else learned.exp()
        result = pool_loss(self.loss, vectors["question"], gather, batch, self.ranks, temperature)
        with record_function("dpr/backward"):
            self.scaler.scale(objective_share(result, batch, num_pools)).backward()
            self._carry_on(batch, chunks, vectors, graphs, seed)
            if is_last:
                average_gradients(self.model.parameters())
        return StepResult(result.loss.detach(), result.num_correct, len(batch))

    def _carry_on(
        self, batch: BiEncoderBatch, chunks: list[_Chunk], vectors: dict[str, Tensor], graphs: dict[int, Tensor], seed: int
    ) -> None:
        """Takes the gradients of the vectors on through the chunks that made them."""
        # What was kept goes first: backward frees it, and there is room for what has to be encoded again.
        for number in sorted(range(len(chunks)), key=lambda number: number not in graphs):
            chunk = chunks[number]
            gradient = vectors[chunk.side].grad
            if gradient is not None and self._is_trained(batch, chunk.side):
                encoded = graphs.pop(number) if number in graphs else self._encode(batch, chunk, seed, number)
                encoded.backward(gradient[chunk.rows])

    def _encode_all(
        self, batch: BiEncoderBatch, chunks: list[_Chunk], seed: int, gather: PoolGather
    ) -> tuple[dict[str, Tensor], dict[int, Tensor]]:
        """All vectors of both sides, detached; and by chunk number those that kept their graph.

        The contexts come first and are on their way to the other ranks while the questions are encoded.
        """
        graphs: dict[int, Tensor] = {}
        vectors: dict[str, Tensor] = {}
        held = 0
        for side, size in (("ctx", len(batch.contexts)), ("question", len(batch.questions))):
            is_trained, of_side = self._is_trained(batch, side), torch.empty(size, self.model.dimension, device=self.device)
            for number, chunk in enumerate(chunks):
                if chunk.side != side:
                    continue
                is_kept = is_trained and held + chunk.size <= self.max_tokens
                with torch.set_grad_enabled(is_kept):
                    encoded = self._encode(batch, chunk, seed, number)
                of_side = of_side.to(encoded.dtype)
                of_side[chunk.rows] = encoded.detach()
                if is_kept:
                    graphs[number], held = encoded, held + chunk.size
            # A frozen tower needs no gradient, so none is summed over ranks for it.
            vectors[side] = of_side.requires_grad_(is_trained or side == "question")
            if side == "ctx":
                gather.start(vectors[side])
        return vectors, graphs

    def _encode(self, batch: BiEncoderBatch, chunk: _Chunk, seed: int, number: int) -> Tensor:
        seed_torch(seed, number)
        tokens = batch.questions if chunk.side == "question" else batch.contexts
        with torch.autocast(self.device.type, dtype=self._autocast_dtype, enabled=self._autocast_dtype is not None):
            vectors: Tensor = self._tower(batch, chunk.side)(tokens.select(chunk.rows))
        return vectors

    def _tower(self, batch: BiEncoderBatch, side: str) -> Encoder:
        return self.model.tower(batch.encoder_type or side)

    def _is_trained(self, batch: BiEncoderBatch, side: str) -> bool:
        return any(parameter.requires_grad for parameter in self._tower(batch, side).parameters())

    def _chunks(self, batch: BiEncoderBatch) -> Iterator[_Chunk]:
        """Both sides in chunks, sequences of like length together: one a side where all fits, else quarters of the budget where those
        are not too small, so that little of it is left over by what is kept."""
        sides = [
            (side, tokens, self._tower(batch, side).is_packed) for side, tokens in (("ctx", batch.contexts), ("question", batch.questions))
        ]
        total = sum(tokens.tokens.shape[0] if is_packed else tokens.padded_size for _, tokens, is_packed in sides)
        limit = self.max_tokens if total <= self.max_tokens else max(self.max_tokens // 4, min(self.max_tokens, MIN_CHUNK_TOKENS))
        for side, tokens, is_packed in sides:
            lengths = tokens.lengths.cpu().numpy()
            for rows in _plan(lengths, limit, is_packed=is_packed):
                size = lengths[rows].sum() if is_packed else lengths[rows].max() * len(rows)
                yield _Chunk(side, torch.from_numpy(rows).to(self.device), int(size))


def _plan(lengths: np.ndarray, limit: int, *, is_packed: bool) -> list[np.ndarray]:
    """Rows of each chunk; ``limit`` counts padding unless ``is_packed``."""
    if not is_packed:
        return plan_token_batches(lengths, limit)
    order = np.argsort(-lengths, kind="stable")
    return [order[rows] for rows in plan_packs(lengths[order].tolist(), limit)]
