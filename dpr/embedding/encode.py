"""Passages -> vectors in the order given, in length-sorted batches of a token budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dpr.core.batch import TokenBatch
from dpr.core.records import Passage
from dpr.data.tensorizer import Tensorizer
from dpr.models.biencoder import BiEncoder

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def tokenize_passages(tensorizer: Tensorizer, passages: Sequence[Passage]) -> TokenBatch:
    """Tokens of passages; one with neither title nor text has the special tokens only."""
    return TokenBatch.from_lists(tensorizer.passage_tokens(passages))


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
    with torch.autocast(model.device.type, dtype=_AUTOCAST.get(precision), enabled=precision in _AUTOCAST):
        vectors = model.encode_batch(tokens, encoder_type=encoder_type, batch_tokens=batch_tokens, max_sequences=batch_size)
    return vectors.float().cpu().numpy()
