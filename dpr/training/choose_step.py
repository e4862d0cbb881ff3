"""Which step a run takes: the whole batch at once, or chunk by chunk."""

from __future__ import annotations

import torch

from dpr.core.distributed import Ranks
from dpr.losses.protocol import Loss
from dpr.models.biencoder import BiEncoder
from dpr.training.grad_cache import CachedStep
from dpr.training.memory import tokens_within
from dpr.training.parallel import data_parallel
from dpr.training.settings import ComputeSettings
from dpr.training.step import DirectStep, Step


def make_step(model: BiEncoder, loss: Loss, settings: ComputeSettings, *, ranks: Ranks, device: torch.device) -> Step:
    """The step that the settings ask for."""
    max_tokens = settings.grad_cache_tokens
    if settings.memory_budget_gb:
        max_tokens = tokens_within(model, settings.memory_budget_gb, precision=settings.precision)
    if max_tokens:
        return CachedStep(model, loss, max_tokens=max_tokens, ranks=ranks, device=device, precision=settings.precision)
    return DirectStep(data_parallel(model, ranks, device), loss, ranks=ranks, device=device, precision=settings.precision)
