"""Hidden states of a sequence -> its one vector."""

from __future__ import annotations

import torch
from torch import Tensor


def pool_padded(hidden: Tensor, mask: Tensor, position: Tensor, kind: str) -> Tensor:
    """Pools (N, L, D) to (N, D): ``cls`` reads ``position`` (N,) of each sequence, ``mean`` averages over ``mask`` (N, L)."""
    if kind == "cls":
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), position]
    weights = mask.to(hidden.dtype)
    return torch.einsum("nld,nl->nd", hidden, weights) / weights.sum(1, keepdim=True)


def pool_packed(hidden: Tensor, lengths: Tensor, position: Tensor, kind: str) -> Tensor:
    """Pools a pack (T, D) to (N, D): ``cls`` reads token ``position`` (N,), ``mean`` averages over each sequence."""
    if kind == "cls":
        return hidden[position]
    return torch.segment_reduce(hidden.to(torch.promote_types(hidden.dtype, torch.float32)), "mean", lengths=lengths, unsafe=True)
