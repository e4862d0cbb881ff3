"""Passages -> vectors in the order given, in length-sorted batches of a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dpr.core.batch import TokenBatch
from dpr.core.compute_settings import autocast
from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage
from dpr.data.tensorizer import Tensorizer
from dpr.models.biencoder import BiEncoder

logger = get_logger(__name__)

_LISTED_PASSAGES = 512  # at a time: a token takes five times as much memory in a list as in a tensor

# CUDA's allocator raises a class of its own; the others are recognised by their messages.
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)


def usual_tokens(device: torch.device) -> int:
    """Default number of tokens of a forward pass without gradient; enough to keep the device busy."""
    return 65536 if device.type == "cuda" else 4096


@dataclass(slots=True)
class TokenBudget:
    """Most tokens of one forward pass, padding included. It shrinks when memory runs out and stays small."""

    tokens: int


def tokenize_passages(tensorizer: Tensorizer, passages: Sequence[Passage]) -> TokenBatch:
    """Tokens of passages; one with neither title nor text has the special tokens only."""
    parts = [
        passages[start : start + _LISTED_PASSAGES] for start in range(0, len(passages), _LISTED_PASSAGES)
    ] or [passages]
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
    """Vectors (N, D) float32 of N sequences, in the order given, by the model's ``question`` or ``ctx``
    tower; dropout is off.

    A forward pass takes at most ``batch_tokens`` tokens (padding included) and, unless 0, ``batch_size``
    sequences. The batches are a function of the lengths alone, so the same sequences give the same bits again
    on the same machine.
    """
    with autocast(model.device, precision):
        vectors = model.encode_batch(
            tokens, encoder_type=encoder_type, batch_tokens=batch_tokens, max_sequences=batch_size
        )
    return vectors.float().cpu().numpy()


def encode_within_memory(
    model: BiEncoder,
    tokens: TokenBatch,
    budget: TokenBudget,
    *,
    encoder_type: str = "ctx",
    batch_size: int = 0,
    precision: str = "fp32",
) -> np.ndarray:
    """As ``encode_tokens``; when memory runs out, the budget is halved and all sequences are encoded again.

    So every result is made with one budget and equals, bit for bit, that of ``encode_tokens`` with this
    budget.

    Raises:
        InputError: the longest sequence alone does not fit into memory.
    """
    asked = budget.tokens

    def vectors_or_none() -> np.ndarray | None:
        # It returns before the next attempt, because the error's traceback holds tensors.
        try:
            return encode_tokens(
                model,
                tokens,
                encoder_type=encoder_type,
                batch_tokens=budget.tokens,
                batch_size=batch_size,
                precision=precision,
            )
        except RuntimeError as error:
            if isinstance(error, torch.cuda.OutOfMemoryError) or any(
                words in str(error) for words in _OUT_OF_MEMORY
            ):
                return None
            raise

    while (vectors := vectors_or_none()) is None:
        longest = int(tokens.lengths.max())
        if budget.tokens <= longest:
            raise InputError(
                f"one sequence of {longest} tokens does not fit into the memory of device {model.device}",
                hint=(
                    "stop other programs on the device, or use precision=bf16, a larger device or a smaller"
                    " model"
                ),
            )
        most = min(batch_size or len(tokens.lengths), len(tokens.lengths)) * longest  # that a pass can fill
        budget.tokens = max(min(budget.tokens, most) // 2, longest)
        if model.device.type == "cuda":
            torch.cuda.empty_cache()
    if budget.tokens < asked:
        message = (
            "out of memory with %d tokens per forward pass; continuing with %d. Set batch_tokens=%d to start"
            " there"
        )
        logger.warning(message, asked, budget.tokens, budget.tokens)
    return vectors
