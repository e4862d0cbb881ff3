"""Batches for the model and the loss, their division into parts with little padding, and the temperature of
scores.

Letters: B questions per rank, N context slots per rank, C distinct contexts per rank, T tokens, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Batch:
    """Base of both kinds of batches: operations on all of their fields."""

    def pin_memory(self) -> Self:
        pinned = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor | TokenBatch):
                pinned[item.name] = value.pin_memory()
        return replace(self, **pinned)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles tensors as arrays, so that a batch passes the pipe from a worker process in one piece.

        Torch would hand over every tensor through shared memory with its own file descriptor and connection.
        For these small tensors that takes longer than making the batch, and it fails where /dev/shm is small,
        as in containers.
        """
        values = (getattr(self, item.name) for item in fields(self))
        return _restored, (
            type(self),
            *(value.numpy() if isinstance(value, Tensor) else value for value in values),
        )


def _restored(kind: Callable[..., _Batch], *values: Any) -> _Batch:
    return kind(*(torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in values))


@dataclass(frozen=True, slots=True)
class TokenBatch(_Batch):
    """Token sequences without padding, laid end to end.

    ``tokens`` (T,) int64; ``lengths`` (N,) int64, each at least 1, summing to T. ``position`` (N,) int64 is
    the position in each sequence that ``cls`` pooling reads (0 except with DPR's token selectors).
    ``lengths`` always stay on the host: shapes follow from them, and a program that asks the device for a
    shape waits until the device is idle.
    """

    tokens: Tensor
    lengths: Tensor
    position: Tensor

    @staticmethod
    def from_lists(sequences: list[list[int]], position: list[int] | None = None) -> TokenBatch:
        """Joins token id lists; none may be empty."""
        if any(not sequence for sequence in sequences):
            raise ValueError("a sequence without tokens cannot be encoded")
        flat = [token for sequence in sequences for token in sequence]
        return TokenBatch(
            torch.tensor(flat, dtype=torch.int64),
            torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64),
            torch.tensor(position or [0] * len(sequences), dtype=torch.int64),
        )

    def __len__(self) -> int:
        return self.lengths.shape[0]

    @property
    def padded_size(self) -> int:
        """Returns the number of tokens if every sequence were padded to the longest."""
        return len(self) * int(self.lengths.max()) if len(self) else 0

    def padded(self, pad_id: int) -> tuple[Tensor, Tensor]:
        """Returns ``input_ids`` (N, L), padded with ``pad_id``, and ``attention_mask`` (N, L) bool; L is the
        longest length."""
        longest = int(self.lengths.max()) if len(self) else 0
        device = self.tokens.device
        lengths = self.lengths.to(device, non_blocking=True)
        mask = torch.arange(longest, device=device) < lengths[:, None]
        # An index by the mask would wait for the device to count it.
        return self.tokens.new_full(mask.shape, pad_id).masked_scatter_(mask, self.tokens), mask

    def select(self, rows: Tensor) -> TokenBatch:
        """Returns the given sequences in the given order. ``rows`` should be on the host; otherwise this
        waits for the device."""
        device = self.tokens.device
        host = rows.cpu()
        starts = torch.cumsum(self.lengths, 0) - self.lengths
        lengths = self.lengths[host]
        offsets = torch.cumsum(lengths, 0) - lengths
        index = spread(starts[host] - offsets, lengths, device)
        index = index + torch.arange(index.shape[0], device=device)
        return TokenBatch(self.tokens[index], lengths, self.position[rows.to(device, non_blocking=True)])

    def positions(self) -> Tensor:
        """Returns the position of every token in its sequence, counted from 0: (T,) on the device of the
        tokens."""
        device = self.tokens.device
        starts = torch.cumsum(self.lengths, 0) - self.lengths
        return torch.arange(len(self.tokens), device=device) - spread(starts, self.lengths, device)

    @staticmethod
    def join(batches: Sequence[TokenBatch]) -> TokenBatch:
        """Concatenates the sequences of several batches."""
        return TokenBatch(
            *(torch.cat([getattr(batch, item.name) for batch in batches]) for item in fields(TokenBatch))
        )

    def with_last_token(self, token: int, position: int) -> LengthenedBatch:
        """Appends ``token`` at ``position`` to every sequence that is not longer than ``position``."""
        lengths = self.lengths + (self.lengths <= position)
        longer = TokenBatch(self.tokens.new_empty(int(lengths.sum())), lengths, self.position)
        positions = longer.positions()
        is_original = positions < spread(self.lengths, lengths, self.tokens.device)
        # at least 0: the first token of a sequence is an original one
        source = torch.cumsum(is_original, 0) - 1
        tokens = torch.where(is_original, self.tokens[source], token)
        return LengthenedBatch(
            replace(longer, tokens=tokens), torch.where(is_original, positions, position), is_original
        )

    def to(self, device: torch.device | str) -> TokenBatch:
        return TokenBatch(
            self.tokens.to(device, non_blocking=True),
            self.lengths.cpu(),
            self.position.to(device, non_blocking=True),
        )


def spread(values: Tensor, lengths: Tensor, device: torch.device) -> Tensor:
    """Repeats value i of ``values`` (N,) ``lengths[i]`` times: (T,) on ``device``. Both inputs lie on the
    host, so nothing waits for the device."""
    return torch.repeat_interleave(
        values.to(device, non_blocking=True),
        lengths.to(device, non_blocking=True),
        output_size=int(lengths.sum()),
    )


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies ``tensor`` from the host to ``device`` without waiting. A copy from memory that is not pinned
    may wait for running work."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


class LengthenedBatch(NamedTuple):
    """Sequences with a token added to some. ``positions`` (T,) count from 0 in each sequence; ``is_original``
    (T,) is False for added tokens."""

    batch: TokenBatch
    positions: Tensor
    is_original: Tensor


@dataclass(frozen=True, slots=True)
class BiEncoderBatch(_Batch):
    """One rank's share of a global batch.

    ``contexts`` holds each distinct passage of the rank once (C sequences). The N = B * (1 + hard + other)
    context *slots* state how often and for which question a passage was listed: ``context_row`` (N,) indexes
    ``contexts``; ``context_valid`` (N,) bool is False for slots that only pad the shape. N is the same on all
    ranks. ``context_ids`` (N, 2) int64 is the passage identity of each slot. ``positive_idx`` (B,) is the
    slot of each question's positive. ``known_positive_ids`` (B, K, 2) with ``known_positive_valid`` (B, K)
    are the identities of all passages known to answer the question. ``loss_weights`` (B,) float64 multiply
    the loss of each question. ``teacher_scores`` (N,) float32 are a teacher's scores of the slots for their
    questions, NaN for a slot without one; None if no slot of this rank has one, whatever other ranks have.

    ``context_valid``, ``context_ids``, ``positive_idx``, ``known_positive_ids`` and ``known_positive_valid``
    always stay on the host, as lengths do: candidates are found there (``dpr.losses.candidates``). So do
    ``teacher_scores``, whose spread is checked there.
    """

    questions: TokenBatch
    contexts: TokenBatch
    context_row: Tensor
    context_valid: Tensor
    context_ids: Tensor
    positive_idx: Tensor
    known_positive_ids: Tensor
    known_positive_valid: Tensor
    loss_weights: Tensor
    encoder_type: str = ""
    datasets: tuple[int, ...] = field(default=())
    """The data set of each question and, in ``rows``, its row number there, for losses by data set and for
    messages. The loss does not depend on them."""
    rows: tuple[int, ...] = field(default=())
    teacher_scores: Tensor | None = None

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def num_tokens(self) -> int:
        return self.questions.tokens.shape[0] + self.contexts.tokens.shape[0]

    def with_one_context(self) -> BiEncoderBatch:
        """Returns a batch whose slots all list the first context, for results that do not depend on context
        vectors."""
        first = torch.zeros(1, dtype=torch.int64)
        return replace(
            self, contexts=self.contexts.select(first), context_row=torch.zeros_like(self.context_row)
        )

    def to(self, device: torch.device | str) -> BiEncoderBatch:
        return replace(
            self,
            questions=self.questions.to(device),
            contexts=self.contexts.to(device),
            context_row=self.context_row.to(device, non_blocking=True),
            loss_weights=self.loss_weights.to(device, non_blocking=True),
        )


@dataclass(frozen=True, slots=True)
class Temperature:
    """Divisor of the scores: ``scores / temperature`` are the logits. ``value`` is above 0: a number or, if
    it is learned, a tensor () with its gradient."""

    value: Tensor | float = 1.0

    def like(self, other: Tensor) -> Tensor:
        """Returns the value, (), on the device and of the type of ``other``."""
        if isinstance(self.value, Tensor):
            return self.value.to(other.device, other.dtype)
        # filled on the device: a copy to it would wait for all work under way
        return other.new_full((), self.value)

    def touched_by(self, losses: Tensor) -> Tensor:
        """Returns ``losses`` plus 0, so that a learned value gets a gradient from any loss. Data-parallel
        training would wait for a missing one."""
        return losses + 0.0 * self.value if isinstance(self.value, Tensor) else losses

    def __rtruediv__(self, scores: Tensor) -> Tensor:
        return scores / self.value

    def __float__(self) -> float:
        return float(self.value.detach() if isinstance(self.value, Tensor) else self.value)


_SHRINK = 0.8


def plan_token_batches(
    lengths: np.ndarray, max_tokens: int, max_sequences: int = 1 << 30
) -> list[np.ndarray]:
    """Cuts sequences, longest first, into batches whose padded size (longest x count) stays within
    ``max_tokens``.

    Every batch has at least one sequence, so a single sequence longer than the budget still gets through.
    Returns index arrays that cover every sequence once. The longest come first, so that a run that exceeds
    the memory fails at once and not after an hour.
    """
    order = np.argsort(-lengths, kind="stable")
    batches: list[np.ndarray] = []
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        count = max(1, min(max_tokens // longest, max_sequences))
        batches.append(order[start : start + count])
        start += count
    return batches


def plan_packs(lengths: Sequence[int], max_tokens: int) -> list[slice]:
    """Cuts consecutive sequences into packs of at most ``max_tokens`` tokens (at least one sequence each)."""
    packs: list[slice] = []
    start = tokens = 0
    for row, length in enumerate(lengths):
        if row > start and tokens + length > max_tokens:
            packs.append(slice(start, row))
            start = row
            tokens = 0
        tokens += length
    return [*packs, slice(start, len(lengths))] if start < len(lengths) else packs


class Bucket(NamedTuple):
    """Sequences of similar length, side by side in a pack: tokens ``start`` to ``stop`` hold
    ``num_sequences`` sequences of up to ``longest`` tokens."""

    start: int
    stop: int
    num_sequences: int
    longest: int


def plan_buckets(
    lengths: Sequence[int], *, min_tokens: int = 512, min_unpadded: int | None = None
) -> list[Bucket]:
    """Cuts sequences, longest first, into buckets; attention over a bucket is padded to one length.

    A new bucket begins when sequences have become shorter than ``_SHRINK`` times its longest and it holds
    ``min_tokens`` tokens; smaller buckets would cost more in calls than they save in padding. Sequences of
    ``min_unpadded`` tokens or more share a bucket only with sequences of the same length.
    """
    buckets: list[Bucket] = []
    start = stop = count = longest = 0
    for length in lengths:
        is_worth_a_call = min_unpadded is not None and longest >= min_unpadded and length < longest
        if count and (is_worth_a_call or (length < _SHRINK * longest and stop - start >= min_tokens)):
            buckets.append(Bucket(start, stop, count, longest))
            start = stop
            count = 0
            longest = 0
        stop += length
        count += 1
        longest = max(longest, length)
    return [*buckets, Bucket(start, stop, count, longest)] if count else buckets
