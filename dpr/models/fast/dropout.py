"""Dropout whose masks cost little on a CPU: 16 random bits an element, where torch's own draws a float for each.

The bits come from torch's default generator, so seeding it decides the masks, as with torch's dropout. The probability is rounded to a
multiple of 1 / 65536 and outputs are scaled by the rounded one, so their mean is exactly that of the inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_LEVELS = 1 << 16
_HIGHEST = 0.99
"""Above it the rounding of 1 - p would be felt."""


def can_drop(states: Tensor, probability: float) -> bool:
    """Whether this module's masks serve: a CPU, and a probability that is neither 0 nor nearly 1."""
    return states.device.type == "cpu" and 1 / _LEVELS <= probability <= _HIGHEST


def draw_bits(shape: torch.Size) -> Tensor:
    """Uniform int16 values of ``shape`` from torch's default generator."""
    words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    return words.view(torch.int16)[: shape.numel()].view(shape)


def keep_mask(bits: Tensor, probability: float, dtype: torch.dtype) -> Tensor:
    """1 where a value stays, with 1 - ``probability``, else 0. Conversions and comparisons in place run at the speed of memory."""
    return bits.to(torch.float32).ge_(_dropped_levels(probability) - _LEVELS // 2).to(dtype)


def keep_scale(probability: float) -> float:
    """What kept values are multiplied with."""
    return _LEVELS / (_LEVELS - _dropped_levels(probability))


def _dropped_levels(probability: float) -> int:
    return round(probability * _LEVELS)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, probability: float) -> Tensor:
        bits = draw_bits(states.shape)
        ctx.save_for_backward(bits)  # half the size of a mask of floats, which is as quickly made again
        ctx.probability = probability
        return keep_mask(bits, probability, states.dtype).mul_(states).mul_(keep_scale(probability))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (bits,) = ctx.saved_tensors
        return keep_mask(bits, ctx.probability, grads[0].dtype).mul_(grads[0]).mul_(keep_scale(ctx.probability)), None


class Dropout(nn.Dropout):
    """``nn.Dropout``; on a CPU with cheap masks, but where a compiler fuses torch's own with what stands around it."""

    def forward(self, states: Tensor) -> Tensor:
        if not self.training or torch.compiler.is_compiling() or not can_drop(states, self.p):
            return super().forward(states)
        dropped: Tensor = _Drop.apply(states, self.p)
        return dropped


def replace_dropout(module: nn.Module) -> None:
    """Puts ``Dropout`` in the place of every ``nn.Dropout`` inside ``module``."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p))
