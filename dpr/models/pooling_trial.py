"""Whether a user-defined pooling keeps the promises of ``dpr.models.pooling.Pooling``: tried once, when a
tower is made with it."""

from __future__ import annotations

from typing import Any

import torch


def width_of(pooling: Any, hidden_size: int, vocab_size: int) -> int:
    """Width of the vectors of a pooling whose two sides agree on three random sequences.

    Raises:
        ValueError: they do not; or it raises anything itself.
    """
    lengths, position = torch.tensor([3, 1, 4]), torch.zeros(3, dtype=torch.int64)
    mask = torch.arange(4)[None] < lengths[:, None]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 4, hidden_size, generator=generator)
    tokens = torch.randint(0, vocab_size, (3, 4), generator=generator)
    read = pooling.token_read(lengths, position)
    with torch.no_grad():
        padded, packed = (
            pooling.padded(hidden, tokens, mask, position),
            pooling.packed(hidden[mask], tokens[mask], lengths, position),
        )
        if padded.dim() != 2 or len(padded) != 3:
            raise ValueError(f"its vectors of 3 sequences are of shape {tuple(padded.shape)}")
        if packed.shape != padded.shape or not torch.allclose(packed, padded, rtol=1e-4, atol=1e-5):
            raise ValueError("packed and padded give different vectors")
        if read is not None:
            states, ids = (part[torch.arange(3), read] for part in (hidden, tokens))
            one_each = pooling.packed(states, ids, torch.ones_like(lengths), torch.zeros_like(position))
            if not torch.allclose(one_each, padded, rtol=1e-4, atol=1e-5):
                raise ValueError("it reads other tokens than token_read states")
    return int(padded.shape[1])
