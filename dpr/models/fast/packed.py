"""Fast towers: ``accelerate`` adapts a backbone once, and ``packed_vectors`` is then its forward over real
tokens only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpr.core.batch import TokenBatch, plan_packs, spread
from dpr.core.errors import ConfigError
from dpr.models.fast import varlen
from dpr.models.fast.attention import Layout, PackedLayout, enable_packing, packed_states, use_packing
from dpr.models.fast.cpu_modules import put_gelu, replace_dropout, replace_gelu
from dpr.models.fast.last_layer import ReadLayout, enable_pruning, prune
from dpr.models.pooling import IdfPooling, MeanPooling, Pooling, RootIdfPooling, repeats
from dpr.models.properties import is_static

# Tokens per forward on a CPU, so that the activations of a layer stay in its cache. A GPU takes a whole batch
# at once.
CPU_FORWARD_TOKENS = 2048
# Without dropout a CPU needs less time for attention over a single sequence of this many tokens than for its
# padding.
CPU_UNPADDED = 64


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a backbone.

    ``first_position`` is the number of the first position of a packed forward, None if the backbone cannot be
    packed. ``prunes_last_layer``: the last layer can compute only the tokens that are read. ``attention`` is
    sdpa or varlen. Without layers (``has_layers``), a token's state is its row of the word table.
    ``in_one_pack``: on a CPU too, a forward calls the backbone once.
    """

    first_position: int | None
    prunes_last_layer: bool
    attention: str
    has_layers: bool = True
    in_one_pack: bool = False


_tried: dict[str, tuple[bool, Capabilities]] = {}
"""Results of the trials of a backbone, the GELU's first. Backbones of the same modules and configuration,
such as that of the second tower, need no trial."""


def accelerate(backbone: Any, *, packed: bool, attention: str, reads_one_token: bool) -> Capabilities:
    """Makes a backbone fast in place: cheaper dropout and GELU on a CPU, packing if ``packed``, a last layer
    for the tokens read only.

    No vector changes beyond rounding: each step is tried on random tokens and undone if the output differs.

    Raises:
        ConfigError: ``attention`` is not known.
    """
    if attention not in varlen.KERNELS:
        raise ConfigError(f"encoder.attention={attention} is not one of {', '.join(varlen.KERNELS)}")
    if packed and is_static(backbone):
        return Capabilities(0, prunes_last_layer=False, attention=attention, has_layers=False)
    replace_dropout(backbone)
    # Everything that determines what its code does: classes, plain attributes, and how many hooks and parts
    # each module has.
    modules = [
        (
            type(module),
            {
                name: len(value) if isinstance(value, dict) else value
                for name, value in vars(module).items()
                if isinstance(value, str | int | float | dict | None)
            },
        )
        for module in backbone.modules()
    ]
    how = (
        backbone.config._attn_implementation,
        backbone.dtype,
        backbone.device,
        packed,
        attention,
        reads_one_token,
    )
    kind = f"{modules} {backbone.config} {how}"
    if kind in _tried:
        has_gelu, able = _tried[kind]
        if has_gelu:
            put_gelu(backbone)
        if able.first_position is not None:
            use_packing(backbone)
        if able.prunes_last_layer:
            prune(backbone)
        return able
    has_gelu = replace_gelu(backbone)
    first_position = enable_packing(backbone) if packed else None
    prunes = reads_one_token and first_position is not None and enable_pruning(backbone, first_position)
    able = Capabilities(first_position, prunes, attention)
    _tried[kind] = (has_gelu, able)
    return able


def packed_vectors(
    backbone: Any,
    batch: TokenBatch,
    pooling: Pooling,
    able: Capabilities,
    last: tuple[int, int] | None = None,
) -> Tensor:
    """Returns pooled vectors (N, V) in the order of ``batch``.

    Sequences are sorted by length and cut into packs; each pack is one row of tokens whose positions restart
    with every sequence. ``last`` is a token and its position, which every shorter sequence attends to.
    """
    if not able.has_layers:
        return _bag_vectors(backbone, batch, pooling)
    device = batch.tokens.device
    # Lengths stay on the host: order, packs and shapes, which follow from them, must not wait for the device.
    lengths = batch.lengths.cpu()
    order = torch.argsort(
        lengths if last is None else lengths + (lengths <= last[1]), descending=True, stable=True
    )
    original = batch.select(order)
    batch = original
    positions = original.positions()
    if last is not None:
        batch, positions, _ = original.with_last_token(*last)
    # The words of all packs are looked up at once: the gradient of the table is as large as the table,
    # however few words are read.
    words = backbone.get_input_embeddings()(batch.tokens)
    starts = torch.cumsum(batch.lengths, 0) - batch.lengths
    original_lengths = original.lengths.to(device, non_blocking=True)
    read = pooling.token_read(original_lengths, original.position) if able.prunes_last_layer else None
    if read is not None:
        token_read = starts.to(device, non_blocking=True) + read
        hidden = token_states(backbone, words, batch, positions, able, (token_read, read))
        vectors = pooling.packed(
            hidden, batch.tokens[token_read], torch.ones_like(original_lengths), torch.zeros_like(read)
        )
    else:
        hidden = token_states(backbone, words, batch, positions, able)
        if last is not None:
            hidden = hidden[original.positions() + spread(starts, original.lengths, device)]
        vectors = pooling.packed(hidden, original.tokens, original_lengths, original.position)
    return vectors[torch.argsort(order).to(device, non_blocking=True)]


def token_states(
    backbone: Any,
    words: Tensor,
    batch: TokenBatch,
    positions: Tensor,
    able: Capabilities,
    read: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Returns the last hidden states of all tokens (T, D), whose ``words`` (T, D) are looked up, or, with
    ``read``, of one token per sequence (N, D).

    The sequences of ``batch`` come longest first. ``read`` holds the number (N,) of each of these tokens in
    the batch, and its position (N,) in its sequence.
    """
    device = batch.tokens.device
    lengths = batch.lengths.tolist()
    positions = positions + (able.first_position or 0)
    packs = plan_packs(
        lengths, CPU_FORWARD_TOKENS if device.type == "cpu" and not able.in_one_pack else sum(lengths)
    )
    sizes = [sum(lengths[rows]) for rows in packs]
    states = []
    start = 0
    for rows, pack_words, pack_positions in zip(
        packs, words.split(sizes), positions.split(sizes), strict=True
    ):
        layout = _layout(backbone, lengths[rows], pack_words, able.attention)
        if read is not None:
            layout = ReadLayout(layout, read[0][rows] - start, read[1][rows])
        states.append(packed_states(backbone, pack_words, pack_positions, layout))
        start += len(pack_words)
    return torch.cat(states)


def _layout(backbone: Any, lengths: list[int], words: Tensor, attention: str) -> Layout:
    if attention == "varlen" and varlen.is_usable(backbone.config, words.device, words.dtype):
        return varlen.VarlenLayout.build(lengths, words.device)
    is_unpadded = words.device.type == "cpu" and not backbone.training
    return PackedLayout.build(lengths, words.device, min_unpadded=CPU_UNPADDED if is_unpadded else None)


class _Rows(torch.autograd.Function):
    """Rows of a table, each at most once and in order, so that their gradient needs no sorting."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        ctx.rows = rows
        ctx.shape = table.shape
        return table.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return torch.sparse_coo_tensor(
            ctx.rows[None], gradients[0], ctx.shape, check_invariants=False, is_coalesced=True
        ), None


def _bag_vectors(backbone: Any, batch: TokenBatch, pooling: Pooling) -> Tensor:
    """Returns pooled vectors (N, V) of a backbone without layers, in the order of ``batch``.

    Each distinct token of the batch is looked up once, and the vector of a text is the sum over its bag, so
    that no state is made for a single token of a text. On a GPU it waits once, for the number of distinct
    tokens.
    """
    lengths = batch.lengths.to(batch.tokens.device, non_blocking=True)
    if isinstance(pooling, RootIdfPooling):
        return _root_bags(backbone, batch, pooling, lengths)
    distinct, inverse = torch.unique(batch.tokens, return_inverse=True)
    rows: Tensor = _Rows.apply(backbone.get_input_embeddings().weight, distinct)
    if isinstance(pooling, IdfPooling):
        rows = rows * pooling.token_weights[distinct][:, None]
    elif type(pooling) is not MeanPooling:
        return pooling.packed(rows[inverse], batch.tokens, lengths, batch.position)
    return nn.functional.embedding_bag(inverse, rows, torch.cumsum(lengths, 0) - lengths, mode="mean")


def _root_bags(backbone: Any, batch: TokenBatch, pooling: RootIdfPooling, lengths: Tensor) -> Tensor:
    """Returns the same vectors for ``RootIdfPooling``: each distinct token of a text is added once, times the
    root of the number of its repeats."""
    vocab_size = len(pooling.token_weights)
    held, _, counts = repeats(batch.tokens, lengths, vocab_size)
    distinct, inverse = torch.unique(held % vocab_size, return_inverse=True)
    rows: Tensor = (
        _Rows.apply(backbone.get_input_embeddings().weight, distinct)
        * pooling.token_weights[distinct][:, None]
    )
    starts = torch.searchsorted(held, torch.arange(len(lengths), device=held.device) * vocab_size)
    counted = counts.to(rows.dtype).sqrt()
    sums = nn.functional.embedding_bag(inverse, rows, starts, mode="sum", per_sample_weights=counted)
    return sums / lengths[:, None]
