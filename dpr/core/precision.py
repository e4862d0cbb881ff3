"""The arithmetic that towers run in: one table of names for training, validation, embedding and scoring pairs. Imports no torch itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Name of the setting -> name of torch's type."""


def dtype_of(precision: str) -> torch.dtype:
    """Torch's type of a precision."""
    import torch

    found: torch.dtype = getattr(torch, PRECISIONS[precision])
    return found


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Runs the matrix products of a block in ``precision``; fp32 switches autocast off."""
    import torch

    is_half = precision != "fp32"
    return torch.autocast(device.type, dtype=dtype_of(precision) if is_half else None, enabled=is_half)
