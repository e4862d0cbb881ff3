"""Attention over a pack in one call of ``torch.nn.attention.varlen``: no padding inside attention either.

Flash Attention for sequences that lie end to end (torch 2.14 takes cuDNN's on some GPUs). It exists for CUDA, fp16 and bf16, and has no
dropout; elsewhere packs go through SDPA (``attention.py``), and the first time that happens it is said why.
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

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.models.fast.attention import Layout, PackedLayout, Sight

logger = get_logger(__name__)

KERNELS = ("sdpa", "varlen")
DTYPES = (torch.float16, torch.bfloat16)
WIDEST_HEAD, HEAD_MULTIPLE = 256, 8
OLDEST_CAPABILITY = (8, 0)  # Ampere


@dataclass(frozen=True, slots=True)
class VarlenLayout(Layout):
    """``lengths`` on the host, so that nobody waits for the device to learn the longest; ``ends`` (n + 1,) int32 their running sum."""

    lengths: Sequence[int]
    ends: Tensor

    @staticmethod
    def build(lengths: Sequence[int], device: torch.device) -> VarlenLayout:
        """For sequences in the given order."""
        ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        return VarlenLayout(lengths, ends.to(device, non_blocking=True))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None, sight: Sight) -> Tensor:
        longest = max(self.lengths)
        back = -1 if sight.window is None or sight.takes_in(longest) else sight.window - 1
        reach = (back, 0 if sight.causal else back)
        return _attend((query, key, value), (self.ends, self.ends), (longest, longest), dropout, scaling, reach)

    def attend_one(
        self, position: Tensor, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None, sight: Sight
    ) -> Tensor:
        longest = max(self.lengths)
        if sight.causal or not sight.takes_in(longest):
            # The kernel takes the only query for the last token, and what is read may stand anywhere.
            padded = PackedLayout.build(self.lengths, query.device)
            return padded.attend_one(position, query, key, value, dropout=dropout, scaling=scaling, sight=sight)
        one_each = torch.arange(len(self.ends), dtype=torch.int32, device=self.ends.device)
        return _attend((query, key, value), (one_each, self.ends), (1, longest), dropout, scaling, (-1, -1))


def _attend(
    states: tuple[Tensor, Tensor, Tensor],
    ends: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    dropout: float,
    scaling: float | None,
    reach: tuple[int, int],
) -> Tensor:
    """Queries (1, H, Q, d), keys and values (1, H or fewer, T, d) in, (1, Q, H, d) out; ``ends`` and ``longest`` of queries, of keys;
    ``reach`` back and ahead, -1 for no end."""
    if dropout > 0:
        raise ConfigError(
            f"encoder.attention=varlen has no attention dropout, and it is {dropout}; set encoder.attention_dropout=0 (encoder.dropout "
            "stays for everything else), or encoder.attention=sdpa"
        )
    from torch.nn.attention import varlen

    dtype = arithmetic_of(states[0].device, states[0].dtype)
    query, key, value = (part[0].transpose(0, 1).to(dtype) for part in states)
    options: dict[str, Any] = {"scale": scaling, "window_size": reach}
    if shared := query.shape[1] // key.shape[1] - 1:  # heads that use the keys of another
        if "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters:
            options["enable_gqa"] = True
        else:
            key, value = (part.repeat_interleave(shared + 1, dim=1) for part in (key, value))
    mixed: Any = varlen.varlen_attn(query, key, value, *ends, *longest, **options)
    return mixed[None]


def arithmetic_of(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """What attention is computed in: autocast's type where it is on. Autocast does not know this kernel, as it does SDPA."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return dtype


def is_usable(config: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether attention of this backbone can go through the kernel now; where not, a warning says why, once for each reason."""
    head_size = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    lack = device_lacks(device) or _arithmetic_lacks(arithmetic_of(device, dtype), head_size) or torch_lacks()
    if lack is not None:
        _warn_once(lack)
    return lack is None


@cache
def device_lacks(device: torch.device) -> str | None:
    """What keeps a device from the kernel, None if nothing does."""
    if device.type != "cuda":
        return f"the kernel is for CUDA, not for {device.type}"
    if not torch.backends.cuda.is_flash_attention_available():
        return "this build of torch has no Flash Attention"
    if torch.cuda.get_device_capability(device) < OLDEST_CAPABILITY:
        return f"the kernel needs an Ampere GPU or a later one, not {torch.cuda.get_device_name(device)}"
    return None


def _arithmetic_lacks(dtype: torch.dtype, head_size: int) -> str | None:
    if dtype not in DTYPES:
        return f"the kernel computes in fp16 and bf16, not in {str(dtype).removeprefix('torch.')}"
    if head_size > WIDEST_HEAD or head_size % HEAD_MULTIPLE:
        return f"the kernel's heads are multiples of {HEAD_MULTIPLE} up to {WIDEST_HEAD} wide, not {head_size}"
    return None


def torch_lacks() -> str | None:
    """The function is young and has changed: whether this torch's takes what ``_attend`` gives it (2.11 and later do)."""
    try:
        from torch.nn.attention import varlen

        inspect.signature(varlen.varlen_attn).bind(*range(7), scale=None, window_size=(-1, -1))
    except (ImportError, AttributeError, TypeError) as error:
        return f"torch {torch.__version__} has no varlen_attn that is called like that of torch 2.11 ({error})"
    return None


@cache
def _warn_once(lack: str) -> None:
    logger.warning("encoder.attention=varlen has no effect here (%s); attention is SDPA's", lack)
