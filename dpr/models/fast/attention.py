"""Attention over sequences laid end to end. Padding exists inside this function only; everything else sees
real tokens.

Registered with transformers under ``ATTENTION``. A backbone whose config names it runs padded (with an
attention mask) or packed (with a ``packed_layout``, passed down as a keyword argument) without a change to
its code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dpr.core.batch import Bucket, on_device, plan_buckets
from dpr.core.errors import first_line
from dpr.core.logs import get_logger, warn_once
from dpr.models.fast.cpu_modules import can_drop, draw_bits, keep_mask, keep_scale
from dpr.models.properties import FAILURES, LENGTHS, agree, pad_id, padded_states, sample_batch, trial

logger = get_logger(__name__)

ATTENTION = "dpr_packed"
_LONGEST_TRIAL = 512
_NOT_COMPUTED = ("softcap", "s_aux", "position_bias")
"""Options of attention that packs do not support."""


class AttentionOptions(NamedTuple):
    """Options of a layer's attention: a query sees keys less than ``window`` positions away and, if
    ``causal``, none after itself."""

    dropout: float
    scaling: float | None
    window: int | None
    causal: bool

    def covers(self, length: int) -> bool:
        """True if the window hides nothing of a sequence."""
        return self.window is None or self.window >= length

    def mask(self, position: Tensor, length: int) -> Tensor:
        """Returns (n, 1, Q, L), True where queries at ``position`` (n, Q) see keys 0 to ``length`` - 1."""
        behind = position[:, None, :, None] - torch.arange(length, device=position.device)
        return ((behind >= 0) if self.causal else True) & (behind.abs() < (self.window or length))


class Layout(Protocol):
    """Positions of sequences in a pack, and the way attention is computed there. Made once per forward and
    shared by all layers."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions, read: Tensor | None = None
    ) -> Tensor:
        """Computes attention within each sequence, from query (1, H, Q, d), key and value (1, H or fewer, T,
        d) to (1, Q, H, d).

        Queries are those of all tokens or, with ``read`` (n,), those of one token of each sequence, at that
        position.
        """


@dataclass(frozen=True, slots=True)
class Region:
    """One bucket of a pack on the device.

    ``source`` (n * L,) is the token at each padded place (0 for padding), ``place`` (t,) the padded place of
    each token, ``mask`` (n, 1, 1, L) True at real tokens; all None if the sequences have the same length.
    """

    bucket: Bucket
    source: Tensor | None
    place: Tensor | None
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Layout that pads sequences of similar length to the same length inside attention, which is torch's SDPA."""

    regions: tuple[Region, ...]

    @staticmethod
    def build(
        lengths: Sequence[int], device: torch.device, *, min_unpadded: int | None = None
    ) -> PackedLayout:
        """Builds the layout of sequences in the given order, longest first. Those of ``min_unpadded`` tokens
        or more are not padded."""
        regions = []
        first = 0
        for bucket in plan_buckets(lengths, min_unpadded=min_unpadded):
            bucket_lengths = torch.tensor(lengths[first : first + bucket.num_sequences])
            first += bucket.num_sequences
            if int(bucket_lengths.min()) == bucket.longest:
                regions.append(Region(bucket, None, None, None))
                continue
            real = torch.arange(bucket.longest)[None, :] < bucket_lengths[:, None]
            place = torch.nonzero(real.flatten())[:, 0]
            source = torch.zeros(real.numel(), dtype=torch.int64)
            source[place] = torch.arange(len(place))
            regions.append(
                Region(bucket, *(on_device(part, device) for part in (source, place, real[:, None, None, :])))
            )
        return PackedLayout(tuple(regions))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions, read: Tensor | None = None
    ) -> Tensor:
        queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
        outputs = []
        first = 0
        for region in self.regions:
            bucket = region.bucket
            rows = slice(first, first + region.bucket.num_sequences)
            tokens = slice(bucket.start, bucket.stop)
            first = rows.stop
            q = padded(queries[tokens], region) if read is None else queries[rows, :, None]
            k = padded(keys[tokens], region)
            v = padded(values[tokens], region)
            # Padding comes after all real tokens: under causal attention none of them sees it.
            mask = None if options.causal and read is None else region.mask
            if not options.covers(bucket.longest) or (options.causal and read is not None):
                position = (
                    torch.arange(bucket.longest, device=query.device)[None]
                    if read is None
                    else read[rows, None]
                )
                near = options.mask(position, bucket.longest)
                # Padded queries see padding: a row without any key would be NaN, which backward spreads,
                # since NaN x 0 is NaN.
                real = mask if mask is None or read is not None else mask | ~mask.transpose(2, 3)
                mask = near if real is None else real & near
            mixed = dot_product_attention(
                q, k, v, mask, options.dropout, options.scaling, causal=options.causal and mask is None
            )
            flat = mixed.transpose(1, 2).reshape(-1, *mixed.shape[1::2])
            outputs.append(
                flat if read is not None or region.place is None else _Unpad.apply(flat, region.place)
            )
        return torch.cat(outputs)[None]


class _Pad(torch.autograd.Function):
    """Pads (t, ...) to (n * L, ...). Padded places get a copy of token 0.

    Its backward gathers too, which is faster than a scatter. It may leave out the gradients of padded places
    because these are 0: no real query sees a padded key, and ``_Unpad`` passes no gradient to padded queries.
    They must still be finite: 0 x NaN is NaN.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, source: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return tokens.index_select(0, source)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        return grads[0].index_select(0, place), None, None


class _Unpad(torch.autograd.Function):
    """Removes the padding: (n * L, ...) -> (t, ...)."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.rows = padded.shape[0]
        return padded.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (place,) = ctx.saved_tensors
        padded = grads[0].new_zeros(ctx.rows, *grads[0].shape[1:])
        return padded.index_copy_(0, place, grads[0]), None


class _DroppedAttention(torch.autograd.Function):
    """Attention with dropout on a CPU, where torch falls back to plain operations with a mask of floats.

    Shapes: queries (n, H, Q, d), keys and values (n, H, L, d), mask (n, 1, 1 or Q, L). The mask is True at
    visible keys, of which each query needs at least one.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, probability: float, scaling: float
    ) -> Tensor:
        sequences, heads, length, _ = q.shape
        q, k, v = (states.reshape(sequences * heads, *states.shape[2:]) for states in (q, k, v))
        if mask is None:
            scores = torch.bmm(q, k.transpose(1, 2)).mul_(scaling)
        else:
            bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
            bias = bias.expand(sequences, heads, -1, -1).reshape(sequences * heads, -1, k.shape[1])
            scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scaling)
        weights = torch.softmax(scores, dim=-1)
        # kept for backward: drawing again would give other bits and advance the generator
        bits = draw_bits(weights.shape)
        ctx.save_for_backward(q, k, v, weights, bits)
        ctx.heads = heads
        ctx.scaling = scaling
        ctx.probability = probability
        kept = keep_mask(bits, probability, weights.dtype).mul_(weights)
        return torch.bmm(kept, v).mul_(keep_scale(probability)).view(sequences, heads, length, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, bits = ctx.saved_tensors
        grad = (grads[0] * keep_scale(ctx.probability)).reshape(*weights.shape[:2], -1)
        keep = keep_mask(bits, ctx.probability, weights.dtype)
        grad_weights = torch.bmm(grad, v.transpose(1, 2)).mul_(keep)
        grad_v = torch.bmm(keep.mul_(weights).transpose(1, 2), grad)
        grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        grad_q = torch.bmm(grad_scores, k).mul_(ctx.scaling)
        grad_k = torch.bmm(grad_scores.transpose(1, 2), q).mul_(ctx.scaling)
        return (
            *(part.view(-1, ctx.heads, *part.shape[1:]) for part in (grad_q, grad_k, grad_v)),
            None,
            None,
            None,
        )


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Makes torch compute attention with any of its kernels except cuDNN's inside the block. On an H100,
    torch 2.13 and later versions prefer cuDNN's.

    cuDNN plans every new pair of number and length of sequences on the host, for tens of milliseconds. The
    pairs of buckets and packs are hardly ever seen twice. Its backward also sums in an order that may change.
    """
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)


def dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    *,
    causal: bool = False,
) -> Tensor:
    """Computes attention of queries (n, H, Q, d) over keys and values (n, H or fewer, L, d); returns (n, H,
    Q, d). ``causal`` requires that there is no mask, and Q = L."""
    shared = q.shape[1] // k.shape[1]  # query heads per key head
    drops = can_drop(q, dropout)
    if drops and torch.is_autocast_enabled("cpu"):
        # Autocast casts for SDPA, but not for custom functions.
        dtype = torch.get_autocast_dtype("cpu")
        q, k, v = (states.to(dtype) for states in (q, k, v))
    if shared > 1 and (
        drops or (mask is not None and q.device.type != "cpu")
    ):  # no fast kernel supports both
        k, v = (states.repeat_interleave(shared, dim=1) for states in (k, v))
        shared = 1
    if drops:
        if causal:
            mask = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool).tril()
        scaling = q.shape[-1] ** -0.5 if scaling is None else scaling
        with torch.autocast("cpu", enabled=False):
            return _DroppedAttention.apply(q, k, v, mask, dropout, scaling)
    with without_cudnn():
        return nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling, is_causal=causal, enable_gqa=shared > 1
        )


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed_layout: Layout | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Computes attention as transformers calls it, from (1, H, T, d) each to (1, T, H, d); without a layout,
    by plain SDPA over a padded batch.

    ``sliding_window`` reaches one position less than its value to either side, or only back if attention is
    causal.
    """
    if packed_layout is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        with without_cudnn():
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **options
            )
    if found := [name for name in _NOT_COMPUTED if options.get(name) is not None]:
        raise NotImplementedError(f"its attention has a {found[0]}")
    # As in transformers, a config with is_causal=False takes precedence over the caller, and the caller over
    # the module.
    of_module = bool(getattr(module, "is_causal", False))
    is_causal = options.get("is_causal")
    window = options.get("sliding_window")
    if getattr(getattr(module, "config", None), "is_causal", None) is False:
        is_causal = False
    if of_module and is_causal is False and window is not None:
        window += 1  # causal attention that was made bidirectional includes the end of its window
    how = AttentionOptions(dropout, scaling, window, of_module if is_causal is None else is_causal)
    return packed_layout.attend(query, key, value, how), None


def padded(tokens: Tensor, region: Region) -> Tensor:
    """Pads (t, H, d) to (n, H, L, d)."""
    if region.source is not None:
        tokens = _Pad.apply(tokens, region.source, region.place)
    return tokens.reshape(region.bucket.num_sequences, region.bucket.longest, *tokens.shape[1:]).transpose(
        1, 2
    )


def packed_states(backbone: Any, words: Tensor, positions: Tensor, layout: Layout) -> Tensor:
    """Returns the backbone's last hidden states (T, D) of a pack of ``words`` (T, D) at ``positions`` (T,)."""
    # Our attention does not read this mask. Without it transformers looks for packs in the positions of
    # causal backbones, and waits for the device.
    options = {"attention_mask": words.new_zeros(1, 1, 1, 1), "packed_layout": layout}
    return backbone(inputs_embeds=words[None], position_ids=positions[None], **options).last_hidden_state[0]


def register() -> None:
    """Registers ``ATTENTION`` with transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def use_packing(backbone: Any) -> None:
    """Switches a backbone to ``packed_attention``."""
    register()
    backbone.set_attn_implementation(ATTENTION)


def enable_packing(backbone: Any) -> int | None:
    """Switches a backbone to ``packed_attention`` if its output stays the same; returns the number of its
    first position.

    It is tried on a few random sequences, the first longer than any window of its attention: padded with the
    backbone's attention, then packed with positions counted from 0 and from ``padding_idx + 1`` (RoBERTa).
    Backbones whose output differs (relative position biases, capped scores, ...) are left as they were, with
    one warning.
    """
    register()
    original = backbone.config._attn_implementation
    reason = "its packed attention gives other states"
    try:
        with trial(backbone):
            batch = sample_batch(backbone, (past_the_windows(backbone), *LENGTHS[1:]))
            expected = padded_states(backbone, batch)
            if not backbone._can_set_attn_implementation():  # set_attn_implementation would only log it
                raise ValueError("its attention cannot be replaced")
            backbone.set_attn_implementation(ATTENTION)
            layout = PackedLayout.build(batch.lengths.tolist(), batch.tokens.device)
            words = backbone.get_input_embeddings()(batch.tokens)
            for first in (0, pad_id(backbone.config) + 1):
                if agree(packed_states(backbone, words, batch.positions() + first, layout), expected):
                    return first
    except FAILURES as error:
        reason = first_line(error)
    if backbone.config._attn_implementation != original:
        backbone.set_attn_implementation(original)
    warn_once(
        logger,
        "%s cannot be packed (%s); its batches are padded to the longest sequence",
        type(backbone).__name__,
        reason,
    )
    return None


def past_the_windows(backbone: Any) -> int:
    """Returns the length of a sequence that exceeds every window of the attention, if that is short enough
    for a trial."""
    windows = [
        window
        for module in backbone.modules()
        if isinstance(window := getattr(module, "sliding_window", None), int)
    ]
    limit = min(getattr(backbone.config, "max_position_embeddings", None) or _LONGEST_TRIAL, _LONGEST_TRIAL)
    return max(LENGTHS[0], min(max(windows, default=0) + 3, limit))
