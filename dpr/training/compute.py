"""What a run computes with: the arithmetic, the step, and the model as one of several ranks trains it."""

from __future__ import annotations

import inspect
import os
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpr.core.compute_settings import autocast
from dpr.core.distributed import Ranks, copy_from_main
from dpr.core.logs import get_logger
from dpr.losses.protocol import Loss
from dpr.models.biencoder import BiEncoder
from dpr.training.settings import TrainSettings
from dpr.training.sharding import row_tables, shard
from dpr.training.step import DirectStep, Step
from dpr.training.trial import evaluating, total, trial_tokens

logger = get_logger(__name__)


def set_up_arithmetic(settings: TrainSettings, model: BiEncoder) -> None:
    """Applies what concerns the whole process (determinism) and the towers (activation checkpointing,
    compilation).

    Raises:
        ConfigError: a backbone has no activation checkpointing.
    """
    if settings.deterministic:
        # cuBLAS reads it on first use.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    if settings.gradient_checkpointing:
        from dpr.models.encoder import checkpoint_activations

        checkpoint_activations(model.trained_towers())
    if settings.compile:
        from dpr.models.encoder import compile_towers

        with autocast(model.device, settings.precision):
            compile_towers(model.trained_towers())


def make_step(
    model: BiEncoder, loss: Loss, settings: TrainSettings, *, ranks: Ranks, device: torch.device
) -> Step:
    """The step that the settings ask for: the whole batch at once, or chunk by chunk; the model sharded, if
    they ask for that."""
    max_tokens = settings.grad_cache_tokens
    how: dict[str, Any] = {"ranks": ranks, "device": device, "precision": settings.precision}
    cached = None
    if max_tokens:
        from dpr.training.grad_cache import CachedStep

        cached = CachedStep(model, loss, max_tokens=max_tokens, **how)  # it measures the whole model
    if settings.sharding == "fsdp2":
        shard(model, ranks)
        return cached or DirectStep(model, loss, **how)
    return cached or DirectStep(
        data_parallel(model, ranks, device, precision=settings.precision), loss, **how
    )


def data_parallel(
    model: BiEncoder, ranks: Ranks, device: torch.device, *, precision: str = "fp32"
) -> nn.Module:
    """The model, wrapped so that gradients are averaged over ranks; with one rank, the model itself.

    So is a model with tables that learn by rows, which DDP would send whole: its steps average the gradients
    themselves.
    """
    if ranks.world_size == 1 or row_tables(model):
        copy_from_main(model.parameters())
        return model
    device_ids = [device.index] if device.type == "cuda" else None
    # Buffers (position numbers) are equal everywhere; torch 2.13 renamed the switch that leaves them alone.
    renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    leave_buffers: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    parallel = DistributedDataParallel(
        model, device_ids=device_ids, gradient_as_bucket_view=True, **leave_buffers
    )
    # DDP sums gradients in buckets and regroups them once: in the forward after its first backward, in the
    # order in which they were ready. Other buckets add the terms of 3 or more ranks in another order. A
    # resumed run would take its first step with the first grouping, where an uninterrupted run has the
    # second. So every start begins with the same backward, whose gradients are discarded.
    with evaluating(model), autocast(model.device, precision):
        tokens = trial_tokens(model)
        total(parallel(tokens, tokens)).backward()
    model.zero_grad(set_to_none=True)
    return parallel
