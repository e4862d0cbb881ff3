"""GELU in the place of its argument, where no gradient is wanted: half the memory, and as many kernels as there are powers of two.

On a CPU torch has oneDNN compile a kernel for every shape it meets, and keeps a thousand of them. Packs of texts hardly ever repeat a
shape, so half a millisecond would be spent on each, and the kernels, scattered between activations that come and go, would make the heap
grow for as long as a corpus is embedded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dpr.models.trials import FAILURES, agree, padded_states, sample_batch, trial

_PIECE = 1 << 20


class Gelu(nn.Module):
    """The GELU by the error function, of the same values as torch's; without gradients its argument is overwritten on a CPU."""

    def forward(self, states: Tensor) -> Tensor:
        # Autograd would need the argument in backward: it may be overwritten only where no graph is recorded.
        in_place = states.device.type == "cpu" and states.is_contiguous() and not torch.is_grad_enabled()
        if not in_place or torch.compiler.is_compiling():
            return nn.functional.gelu(states)
        flat, start = states.view(-1), 0
        while start < len(flat):
            size = min(_PIECE, 1 << ((len(flat) - start).bit_length() - 1))
            torch.ops.aten.gelu_(flat[start : start + size])
            start += size
        return states


def replace_gelu(backbone: Any) -> None:
    """Puts ``Gelu`` in the place of every exact GELU inside a backbone.

    Judged by trying, since a backbone could use the argument once more: one that computes something else is left as it was.
    """
    from transformers.activations import GELUActivation

    found = [
        (parent, name, child)
        for parent in backbone.modules()
        for name, child in parent.named_children()
        if (type(child) is GELUActivation and child.act is nn.functional.gelu) or (type(child) is nn.GELU and child.approximate == "none")
    ]
    batch = sample_batch(backbone)
    try:
        with trial(backbone):
            expected = padded_states(backbone, batch)
            for parent, name, _ in found:
                setattr(parent, name, Gelu())
            if agree(padded_states(backbone, batch), expected):
                return
    except FAILURES:
        pass
    for parent, name, child in found:
        setattr(parent, name, child)
