"""What travels from the data side to the model, and from the model to the loss.

Letters: B questions per rank, N context slots per rank, C distinct contexts per rank, T tokens, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

_Batch = TypeVar("_Batch", "TokenBatch", "BiEncoderBatch")


def _with_tensors(batch: _Batch, change: Callable[[Any], Any]) -> _Batch:
    """The same batch with every tensor in it replaced by ``change(tensor)``."""
    values = {item.name: getattr(batch, item.name) for item in fields(batch)}
    return replace(batch, **{name: change(value) for name, value in values.items() if isinstance(value, Tensor | TokenBatch)})


def _reduced(batch: TokenBatch | BiEncoderBatch) -> tuple[Any, ...]:
    """A batch as arrays, by which it goes through the pipe from a worker process in one piece.

    Torch would hand over every tensor by shared memory, a file descriptor and a connection of its own, which for these small tensors
    takes longer than making the batch, and fails where /dev/shm is small, as in containers.
    """
    values = (getattr(batch, item.name) for item in fields(batch))
    return _restored, (type(batch), *(value.numpy() if isinstance(value, Tensor) else value for value in values))


def _restored(kind: Callable[..., _Batch], *values: Any) -> _Batch:
    return kind(*(torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in values))


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Token sequences without padding, laid end to end.

    ``tokens`` (T,) int64; ``lengths`` (N,) int64, every one at least 1, summing to T. ``position`` (N,) int64 is where in each
    sequence the representation is read when pooling is ``cls`` (0 but for DPR's token selectors). ``lengths`` stay on the host wherever
    the others go: shapes follow from them, and a program that asks the device for a shape waits until it has nothing left to do.
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
            torch.tensor(position if position is not None else [0] * len(sequences), dtype=torch.int64),
        )

    def __len__(self) -> int:
        return self.lengths.shape[0]

    @property
    def padded_size(self) -> int:
        """Tokens there would be if every sequence were as long as the longest."""
        return len(self) * int(self.lengths.max()) if len(self) else 0

    def padded(self, pad_id: int) -> tuple[Tensor, Tensor]:
        """Returns ``input_ids`` (N, L) filled up with ``pad_id`` and ``attention_mask`` (N, L) bool, L the longest length."""
        longest = int(self.lengths.max()) if len(self) else 0
        device = self.tokens.device
        mask = torch.arange(longest, device=device)[None, :] < self.lengths.to(device, non_blocking=True)[:, None]
        input_ids = torch.full(mask.shape, pad_id, dtype=self.tokens.dtype, device=self.tokens.device)
        input_ids[mask] = self.tokens
        return input_ids, mask

    def select(self, rows: Tensor) -> TokenBatch:
        """The given sequences, in the given order; ``rows`` had best be on the host too."""
        device, host = self.tokens.device, rows.cpu()
        starts = torch.cumsum(self.lengths, 0) - self.lengths
        lengths = self.lengths[host]
        offsets = torch.cumsum(lengths, 0) - lengths
        index = spread(starts[host] - offsets, lengths, device)
        index = index + torch.arange(index.shape[0], device=device)
        return TokenBatch(self.tokens[index], lengths, self.position[rows.to(device, non_blocking=True)])

    def positions(self) -> Tensor:
        """The place of every token in its sequence, counted from 0: (T,) where the tokens are."""
        starts = torch.cumsum(self.lengths, 0) - self.lengths
        device = self.tokens.device
        return torch.arange(self.tokens.shape[0], device=device) - spread(starts, self.lengths, device)

    @staticmethod
    def join(batches: Sequence[TokenBatch]) -> TokenBatch:
        """The sequences of one batch after the other's."""
        return TokenBatch(*(torch.cat([getattr(batch, item.name) for batch in batches]) for item in fields(TokenBatch)))

    def followed_by(self, other: TokenBatch) -> TokenBatch:
        """These sequences, then the other's."""
        return TokenBatch.join([self, other])

    def with_last_token(self, token: int, position: int) -> LengthenedBatch:
        """Adds one token, numbered ``position``, to every sequence that does not reach that far; the others stay as they are."""
        device = self.tokens.device
        lengths = self.lengths + (self.lengths <= position)
        longer = TokenBatch(torch.empty(int(lengths.sum()), dtype=self.tokens.dtype, device=device), lengths, self.position)
        within = longer.positions()
        is_original = within < spread(self.lengths, lengths, device)
        own = torch.cumsum(is_original, 0) - 1  # the first token of a sequence is its own, so that none is below 0
        tokens = torch.where(is_original, self.tokens[own], token)
        return LengthenedBatch(replace(longer, tokens=tokens), torch.where(is_original, within, position), is_original)

    def to(self, device: torch.device | str) -> TokenBatch:
        tokens, position = (value.to(device, non_blocking=True) for value in (self.tokens, self.position))
        return TokenBatch(tokens, self.lengths.cpu(), position)

    def pin_memory(self) -> TokenBatch:
        return _with_tensors(self, lambda value: value.pin_memory())

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduced(self)


def spread(values: Tensor, lengths: Tensor, device: torch.device) -> Tensor:
    """Value i of ``values`` (N,) ``lengths[i]`` times, (T,) on ``device``, without waiting for it. Both are given on the host."""
    moved = (part.to(device, non_blocking=True) for part in (values, lengths))
    return torch.repeat_interleave(*moved, output_size=int(lengths.sum()))


class LengthenedBatch(NamedTuple):
    """Sequences with a token added to some: ``positions`` (T,) counted from 0 in each, ``is_original`` (T,) False for what was added."""

    batch: TokenBatch
    positions: Tensor
    is_original: Tensor


@dataclass(frozen=True, slots=True)
class BiEncoderBatch:
    """One rank's share of a pool.

    ``contexts`` holds each distinct passage of the rank once (C sequences). The N = B * (1 + hard + other) context *slots* say how
    often and for which question a passage was listed: ``context_row`` (N,) indexes ``contexts``; ``context_valid`` (N,) bool is False for
    slots that only fill the shape up. N is the same on all ranks. ``context_ids`` (N, 2) int64 is the judgement identity of each slot.
    ``positive_idx`` (B,) is the slot of each question's positive. ``known_positive_ids`` (B, K, 2) with
    ``known_positive_valid`` (B, K) are the identities of all passages known to answer the question. ``loss_weights`` (B,) float64
    multiply the loss of each question.

    What says which slots count, ``context_valid`` to ``known_positive_valid``, stays on the host wherever the others go, as lengths do:
    candidates are found there (``dpr.losses.candidates``).
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
    """The data set of each question and, below, its row number there; for explaining a step, not used in training."""
    rows: tuple[int, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def num_tokens(self) -> int:
        return self.questions.tokens.shape[0] + self.contexts.tokens.shape[0]

    def to(self, device: torch.device | str) -> BiEncoderBatch:
        row, weights = (value.to(device, non_blocking=True) for value in (self.context_row, self.loss_weights))
        return replace(self, questions=self.questions.to(device), contexts=self.contexts.to(device), context_row=row, loss_weights=weights)

    def pin_memory(self) -> BiEncoderBatch:
        return _with_tensors(self, lambda value: value.pin_memory())

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduced(self)
