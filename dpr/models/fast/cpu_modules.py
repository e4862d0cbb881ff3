"""Dropout and GELU that cost less on a CPU.

Dropout masks take 16 random bits per element, where torch draws a float for each. The bits come from torch's
default generator, so its seed determines the masks, as with torch's dropout. The probability is rounded to a
multiple of 1 / 65536. Outputs are scaled by the rounded probability, so that their mean is exactly that of
the inputs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from dpr.models.properties import FAILURES, agree, padded_states, sample_batch, trial

_PIECE = 1 << 20
_LEVELS = 1 << 16
_HIGHEST = 0.99
"""Highest probability; above it the rounding of 1 - p would matter."""


def can_drop(states: Tensor, probability: float) -> bool:
    """True if these masks can be used: on a CPU, with a probability that is neither 0 nor nearly 1."""
    return states.device.type == "cpu" and 1 / _LEVELS <= probability <= _HIGHEST


def draw_bits(shape: torch.Size) -> Tensor:
    """Draws uniform int16 values of ``shape`` from torch's default generator."""
    words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    return words.view(torch.int16)[: shape.numel()].view(shape)


def keep_mask(bits: Tensor, probability: float, dtype: torch.dtype) -> Tensor:
    """Returns 1 for kept values, with probability 1 - ``probability``, else 0. Converting and comparing in
    place runs at memory speed."""
    return bits.to(torch.float32).ge_(round(probability * _LEVELS) - _LEVELS // 2).to(dtype)


def keep_scale(probability: float) -> float:
    """Returns the factor of kept values."""
    return _LEVELS / (_LEVELS - round(probability * _LEVELS))


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, probability: float) -> Tensor:
        bits = draw_bits(states.shape)
        ctx.save_for_backward(bits)  # half the size of a mask of floats, which is quickly remade
        ctx.probability = probability
        return keep_mask(bits, probability, states.dtype).mul_(states).mul_(keep_scale(probability))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (bits,) = ctx.saved_tensors
        return keep_mask(bits, ctx.probability, grads[0].dtype).mul_(grads[0]).mul_(
            keep_scale(ctx.probability)
        ), None


class Dropout(nn.Dropout):
    """``nn.Dropout`` with cheap masks on a CPU."""

    def forward(self, states: Tensor) -> Tensor:
        if not self.training or not can_drop(states, self.p):
            return super().forward(states)
        return _Drop.apply(states, self.p)


def replace_dropout(module: nn.Module) -> None:
    """Replaces every ``nn.Dropout`` inside ``module`` by ``Dropout``."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p))


class Gelu(nn.Module):
    """Torch's exact GELU. Without gradients, on a CPU, it overwrites its argument, in pieces that are powers
    of two, which halves the memory.

    On a CPU torch has oneDNN compile a kernel for every shape, and keeps a thousand of them. Packs of texts
    hardly ever repeat a shape, so each would cost half a millisecond, and the kernels, allocated between
    activations, would fragment the heap for as long as a corpus is embedded.
    """

    def forward(self, states: Tensor) -> Tensor:
        # Autograd needs the argument in backward, so it may be overwritten only where no graph is recorded.
        in_place = states.device.type == "cpu" and states.is_contiguous() and not torch.is_grad_enabled()
        if not in_place or torch.compiler.is_compiling():  # an exporter would note one pass of the loop
            return nn.functional.gelu(states)
        flat = states.view(-1)
        start = 0
        while start < len(flat):
            size = min(_PIECE, 1 << ((len(flat) - start).bit_length() - 1))
            torch.ops.aten.gelu_(flat[start : start + size])
            start += size
        return states


def put_gelu(backbone: Any) -> list[tuple[nn.Module, str, nn.Module]]:
    """Replaces every exact GELU inside a backbone by ``Gelu``. Returns each that was replaced, with the
    module that held it and its name there."""
    from transformers.activations import GELUActivation

    exact: list[tuple[nn.Module, str, nn.Module]] = [
        (parent, name, child)
        for parent in backbone.modules()
        for name, child in parent.named_children()
        if (type(child) is GELUActivation and child.act is nn.functional.gelu)
        or (type(child) is nn.GELU and child.approximate == "none")
    ]
    for parent, name, _ in exact:
        setattr(parent, name, Gelu())
    return exact


def replace_gelu(backbone: Any) -> bool:
    """Calls ``put_gelu``, and undoes it if the backbone's output changes, as it does if the argument is used
    again. Returns whether the output stays the same."""
    batch = sample_batch(backbone)
    replaced: list[tuple[nn.Module, str, nn.Module]] = []
    with suppress(*FAILURES), trial(backbone):
        expected = padded_states(backbone, batch)
        replaced = put_gelu(backbone)
        if agree(padded_states(backbone, batch), expected):
            return True
    for parent, name, child in replaced:
        setattr(parent, name, child)
    return False
