"""The precision that towers run in, for training, validation, embedding and scoring. Importing this module
does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Value of the setting -> name of torch's dtype."""


def dtype_of(precision: str) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, PRECISIONS[precision])
    return dtype


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Runs the matrix products of a block in ``precision``; fp32 switches autocast off."""
    import torch

    return torch.autocast(
        device.type, dtype=None if precision == "fp32" else dtype_of(precision), enabled=precision != "fp32"
    )
