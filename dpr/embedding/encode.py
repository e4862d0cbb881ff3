"""Passages -> vectors in the order given, in length-sorted batches of a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dpr.core.batch import TokenBatch
from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.precision import autocast
from dpr.core.records import Passage
from dpr.data.packing import plan_token_batches
from dpr.data.tensorizer import Tensorizer
from dpr.models.biencoder import BiEncoder

logger = get_logger(__name__)

_LISTED_PASSAGES = 512  # at a time: a token in a list takes five times what it takes in a tensor

# CUDA's allocator has an error class of its own, the others only words.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")


def usual_tokens(device: torch.device) -> int:
    """Tokens of a forward pass without gradient that keep a device busy, where nobody states how many."""
    return 65536 if device.type == "cuda" else 4096


@dataclass(slots=True)
class TokenBudget:
    """Tokens of one forward pass at most, padding included. It shrinks where memory does not suffice, and stays so."""

    tokens: int


def tokenize_passages(tensorizer: Tensorizer, passages: Sequence[Passage]) -> TokenBatch:
    """Tokens of passages; one with neither title nor text has the special tokens only."""
    parts = [passages[start : start + _LISTED_PASSAGES] for start in range(0, len(passages), _LISTED_PASSAGES)] or [passages]
    return TokenBatch.join([TokenBatch.from_lists(tensorizer.passage_tokens(part)) for part in parts])


def encode_tokens(
    model: BiEncoder,
    tokens: TokenBatch,
    *,
    encoder_type: str = "ctx",
    batch_tokens: int,
    batch_size: int = 0,
    precision: str = "fp32",
) -> np.ndarray:
    """Vectors (N, D) float32 of N sequences, in the order given, by the model's ``question`` or ``ctx`` tower; dropout is off.

    A forward pass takes at most ``batch_tokens`` tokens (padding included) and, unless 0, ``batch_size`` sequences. The batches are a
    function of the lengths alone, so the same sequences give the same bits again on the same machine.
    """
    with autocast(model.device, precision):
        vectors = model.encode_batch(tokens, encoder_type=encoder_type, batch_tokens=batch_tokens, max_sequences=batch_size)
    return vectors.float().cpu().numpy()


def encode_within_memory(
    model: BiEncoder, tokens: TokenBatch, budget: TokenBudget, *, encoder_type: str = "ctx", batch_size: int = 0, precision: str = "fp32"
) -> np.ndarray:
    """As ``encode_tokens``; where memory runs out, the budget is halved and all sequences are encoded again.

    So every result is made with one budget, and equals bit for bit that of a call which is given this budget.

    Raises:
        InputError: memory does not suffice for the longest sequence alone.
    """
    asked = budget.tokens
    while (
        vectors := _vectors_or_none(model, tokens, encoder_type, budget_tokens=budget.tokens, batch_size=batch_size, precision=precision)
    ) is None:
        lengths = tokens.lengths.cpu().numpy()
        longest, batches = int(lengths.max()), plan_token_batches(lengths, budget.tokens, batch_size or len(lengths))
        used = max(len(rows) * int(lengths[rows[0]]) for rows in batches)
        if used <= longest:
            raise InputError(
                f"memory of the device {model.device} does not suffice for one sequence of {longest} tokens",
                hint="end what else uses the device, or take precision=bf16, a larger device or a smaller model",
            )
        budget.tokens = max(used // 2, longest)
        if model.device.type == "cuda":
            torch.cuda.empty_cache()
    if budget.tokens < asked:
        message = "out of memory with %d tokens a forward pass; going on with %d. batch_tokens=%d starts with that"
        logger.warning(message, asked, budget.tokens, budget.tokens)
    return vectors


def _vectors_or_none(
    model: BiEncoder, tokens: TokenBatch, encoder_type: str, *, budget_tokens: int, batch_size: int, precision: str
) -> np.ndarray | None:
    """None where memory ran out. It returns, so that the error's traceback holds no tensor any more when the next trial begins."""
    try:
        return encode_tokens(
            model, tokens, encoder_type=encoder_type, batch_tokens=budget_tokens, batch_size=batch_size, precision=precision
        )
    except RuntimeError as error:
        if isinstance(error, torch.cuda.OutOfMemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY):
            return None
        raise
