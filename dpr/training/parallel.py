"""The model as one of several ranks trains it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpr.core.distributed import Ranks
from dpr.models.biencoder import BiEncoder
from dpr.training.trial import evaluating, total, trial_tokens


def data_parallel(model: BiEncoder, ranks: Ranks, device: torch.device) -> nn.Module:
    """The model, wrapped so that gradients are averaged over ranks; with one rank the model itself."""
    if ranks.world_size == 1:
        return model
    device_ids = [device.index] if device.type == "cuda" else None
    # Buffers (position numbers) are equal everywhere; torch 2.13 renamed the switch that leaves them alone.
    renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    leave_buffers: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    parallel = DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True, **leave_buffers)
    _settle_buckets(parallel, model)
    return parallel


def _settle_buckets(parallel: DistributedDataParallel, model: BiEncoder) -> None:
    """Has the gradients grouped for good before the first step.

    DDP sums gradients in buckets, and groups them anew once: with the forward after its first backward, in the order in which they were
    ready in that. Other buckets add the terms of 3 or more ranks in another order. A resumed run would take its first step with the first
    grouping, where the run without a stop had long had the second. So all starts begin with the same backward, which counts for nothing.
    """
    with evaluating(model):
        tokens = trial_tokens(model)
        total(parallel(tokens, tokens)).backward()
    model.zero_grad(set_to_none=True)
