"""The packed forward of a tower: real tokens only, sequences laid end to end, vectors as those of the padded forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dpr.core.batch import TokenBatch, spread
from dpr.data.packing import plan_packs
from dpr.models.fast import varlen
from dpr.models.fast.attention import Layout, PackAttention, PackedLayout, packed_states
from dpr.models.fast.door import Capabilities
from dpr.models.fast.last_layer import ReadLayout
from dpr.models.fast.varlen import VarlenLayout
from dpr.models.pooling import Pooling

# Tokens per forward on a CPU: activations of a layer then stay in its cache. A GPU takes a whole batch at once.
CPU_FORWARD_TOKENS = 2048
# Without dropout a CPU takes less time for attention over a single sequence of so many tokens than for its padding.
CPU_UNPADDED = 64


def packed_vectors(backbone: Any, batch: TokenBatch, pooling: Pooling, able: Capabilities, last: tuple[int, int] | None = None) -> Tensor:
    """Pooled vectors (N, V) in the order of ``batch``.

    Sequences are sorted by length and cut into packs; each pack is one row of tokens whose positions start again with every sequence.
    ``last`` is a token, and the position it is given, that every shorter sequence attends to.
    """
    device = batch.tokens.device
    # Lengths stay on the host: what follows from them (order, packs, shapes) must not wait for the device.
    lengths = batch.lengths.cpu()
    order = torch.argsort(lengths if last is None else lengths + (lengths <= last[1]), descending=True, stable=True)
    original = batch.select(order)
    batch, positions = original, original.positions()
    if last is not None:
        batch, positions, _ = original.with_last_token(*last)
    starts = torch.cumsum(batch.lengths, 0) - batch.lengths
    own_lengths = original.lengths.to(device, non_blocking=True)
    read = pooling.token_read(own_lengths, original.position) if able.prunes_last_layer else None
    hidden = _states(backbone, batch, positions, able, starts, read)
    if read is not None:
        token_read = starts.to(device, non_blocking=True) + read
        vectors = pooling.packed(hidden, batch.tokens[token_read], torch.ones_like(own_lengths), torch.zeros_like(read))
    else:
        if last is not None:
            hidden = hidden[original.positions() + spread(starts, original.lengths, device)]
        vectors = pooling.packed(hidden, original.tokens, own_lengths, original.position)
    return vectors[torch.argsort(order).to(device, non_blocking=True)]


def _states(backbone: Any, batch: TokenBatch, positions: Tensor, able: Capabilities, starts: Tensor, read: Tensor | None) -> Tensor:
    """Last hidden states of all tokens (T, D), or of the token at ``read`` (N,) of each sequence alone, (N, D)."""
    device, lengths = batch.tokens.device, batch.lengths.tolist()
    token_read = None if read is None else starts.to(device, non_blocking=True) + read
    # All packs' words are looked up at once: the gradient of the table is as large as the table, however few words are read.
    words, positions = backbone.get_input_embeddings()(batch.tokens), positions + (able.first_position or 0)
    packs = plan_packs(lengths, CPU_FORWARD_TOKENS if device.type == "cpu" else sum(lengths))
    sizes = [sum(lengths[rows]) for rows in packs]
    states, start = [], 0
    for rows, pack_words, pack_positions in zip(packs, words.split(sizes), positions.split(sizes), strict=True):
        pack = _layout(backbone, lengths[rows], pack_words, able.attention)
        layout: PackAttention = pack
        if read is not None and token_read is not None:
            layout = ReadLayout(pack, token_read[rows] - start, read[rows])
        states.append(packed_states(backbone, pack_words, pack_positions, layout))
        start += len(pack_words)
    return torch.cat(states)


def _layout(backbone: Any, lengths: list[int], words: Tensor, attention: str) -> Layout:
    if attention == "varlen" and varlen.is_usable(backbone.config, words.device, words.dtype):
        return VarlenLayout.build(lengths, words.device)
    is_unpadded = words.device.type == "cpu" and not backbone.training
    return PackedLayout.build(lengths, words.device, min_unpadded=CPU_UNPADDED if is_unpadded else None)
