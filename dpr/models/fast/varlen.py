"""Attention over a pack in one call of ``torch.nn.attention.varlen``: no padding inside attention either.

Flash Attention for sequences that lie end to end (torch's, not cuDNN's). It exists for CUDA, fp16 and bf16,
without dropout; elsewhere packs go through SDPA (``attention.py``), with one warning that gives the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from dpr.core.logs import get_logger, warn_once
from dpr.models.fast.attention import AttentionOptions, PackedLayout, without_cudnn
from dpr.models.settings import refuse_attention_dropout

logger = get_logger(__name__)

KERNELS = ("sdpa", "varlen")
DTYPES = (torch.float16, torch.bfloat16)
WIDEST_HEAD = 256
HEAD_MULTIPLE = 8
OLDEST_CAPABILITY = (8, 0)  # Ampere


@dataclass(frozen=True, slots=True)
class VarlenLayout:
    """Lengths of sequences that lie end to end: ``lengths`` on the host, so that the longest is known without
    waiting for the device, and ``ends`` (n + 1,) int32, their running sum."""

    lengths: Sequence[int]
    ends: Tensor

    @staticmethod
    def build(lengths: Sequence[int], device: torch.device) -> VarlenLayout:
        """Builds the layout of sequences in the given order."""
        ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        return VarlenLayout(lengths, ends.to(device, non_blocking=True))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions, read: Tensor | None = None
    ) -> Tensor:
        longest = max(self.lengths)
        if read is not None and (options.causal or not options.covers(longest)):
            # The kernel takes a single query for the last token of its sequence; tokens that are read may be
            # anywhere.
            return PackedLayout.build(self.lengths, query.device).attend(query, key, value, options, read)
        refuse_attention_dropout("attention_dropout", options.dropout)
        from torch.nn.attention import varlen

        back = -1 if options.window is None or options.covers(longest) else options.window - 1
        settings: dict[str, Any] = {
            "scale": options.scaling,
            "window_size": (back, 0 if options.causal else back),
        }
        one_each = (
            None if read is None else torch.arange(len(self.ends), dtype=torch.int32, device=self.ends.device)
        )
        query_ends = self.ends if one_each is None else one_each
        longest_query = longest if one_each is None else 1
        dtype = arithmetic_of(query.device, query.dtype)
        q, k, v = (states[0].transpose(0, 1).to(dtype) for states in (query, key, value))
        if (shared := q.shape[1] // k.shape[1]) > 1:  # query heads per key head
            if "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters:
                settings["enable_gqa"] = True
            else:
                k, v = (states.repeat_interleave(shared, dim=1) for states in (k, v))
        with without_cudnn():
            mixed: Any = varlen.varlen_attn(
                q, k, v, query_ends, self.ends, longest_query, longest, **settings
            )
        return mixed[None]


def arithmetic_of(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of attention, which is autocast's if that is on. Autocast covers SDPA but not this kernel."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return dtype


def is_usable(config: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """True if attention of this backbone can use the kernel now. If not, a warning gives the reason, once for
    each reason."""
    head_size = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    arithmetic = arithmetic_of(device, dtype)
    lack = device_lacks(device)
    if lack is None and arithmetic not in DTYPES:
        lack = f"the kernel computes in fp16 and bf16, not in {str(arithmetic).removeprefix('torch.')}"
    if lack is None and (head_size > WIDEST_HEAD or head_size % HEAD_MULTIPLE):
        lack = (
            f"the kernel's heads are multiples of {HEAD_MULTIPLE} up to {WIDEST_HEAD} wide, not {head_size}"
        )
    if lack is not None:
        warn_once(logger, "encoder.attention=varlen has no effect here (%s); SDPA is used", lack)
    return lack is None


@cache
def device_lacks(device: torch.device) -> str | None:
    """Returns why a device cannot run the kernel; None if it can."""
    if device.type != "cuda":
        return f"the kernel is for CUDA, not for {device.type}"
    if not torch.backends.cuda.is_flash_attention_available():
        return "this build of torch has no Flash Attention"
    if torch.cuda.get_device_capability(device) < OLDEST_CAPABILITY:
        return f"the kernel needs an Ampere GPU or a later one, not {torch.cuda.get_device_name(device)}"
    return None
