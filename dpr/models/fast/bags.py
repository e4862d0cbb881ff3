"""The vectors of a backbone without layers: each distinct token of a batch is looked up once, and a text is the sum over its bag.

No state is ever made for a token of a text, so that a batch costs its distinct tokens times the width, and one addition a token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dpr.core.batch import TokenBatch
from dpr.models.pooling import IdfPooling, MeanPooling, Pooling, RootIdfPooling, repeats


class _Rows(torch.autograd.Function):
    """Rows of a table, each at most once and in order, so that their gradient needs no sorting."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        ctx.rows, ctx.shape = rows, table.shape
        return table.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return torch.sparse_coo_tensor(ctx.rows[None], gradients[0], ctx.shape, check_invariants=False, is_coalesced=True), None


def bag_vectors(backbone: Any, batch: TokenBatch, pooling: Pooling) -> Tensor:
    """Pooled vectors (N, V) in the order of ``batch``. On a GPU it waits once, for the number of distinct tokens."""
    lengths = batch.lengths.to(batch.tokens.device, non_blocking=True)
    if isinstance(pooling, RootIdfPooling):
        return _root_bags(backbone, batch, pooling, lengths)
    distinct, place = torch.unique(batch.tokens, return_inverse=True)
    rows: Tensor = _Rows.apply(backbone.get_input_embeddings().weight, distinct)
    if isinstance(pooling, IdfPooling):
        rows = rows * pooling.token_weights[distinct][:, None]
    elif type(pooling) is not MeanPooling:
        return pooling.packed(rows[place], batch.tokens, lengths, batch.position)
    return nn.functional.embedding_bag(place, rows, torch.cumsum(lengths, 0) - lengths, mode="mean")


def _root_bags(backbone: Any, batch: TokenBatch, pooling: RootIdfPooling, lengths: Tensor) -> Tensor:
    """The same with each distinct token of a text added once, times the root of how often it occurs there."""
    vocab_size = len(pooling.token_weights)
    held, _, counts = repeats(batch.tokens, lengths, vocab_size)
    distinct, place = torch.unique(held % vocab_size, return_inverse=True)
    rows: Tensor = _Rows.apply(backbone.get_input_embeddings().weight, distinct) * pooling.token_weights[distinct][:, None]
    starts = torch.searchsorted(held, torch.arange(len(lengths), device=held.device) * vocab_size)
    sums = nn.functional.embedding_bag(place, rows, starts, mode="sum", per_sample_weights=counts.to(rows.dtype).sqrt())
    return sums / lengths[:, None]
