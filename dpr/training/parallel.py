"""The model as one of several ranks trains it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpr.core.distributed import Ranks


def data_parallel(model: nn.Module, ranks: Ranks, device: torch.device) -> nn.Module:
    """The model, wrapped so that gradients are averaged over ranks; with one rank the model itself."""
    if ranks.world_size == 1:
        return model
    device_ids = [device.index] if device.type == "cuda" else None
    # Buffers (position numbers) are equal everywhere; torch 2.13 renamed the switch that leaves them alone.
    renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    leave_buffers: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    return DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True, **leave_buffers)
