"""Floating-point operations of a training pass, and speed and memory of the device that trains."""

from __future__ import annotations

import math
import sys
import time
from functools import cache

import torch
from torch import Tensor, nn

from dpr.models.encoder import Encoder
from dpr.models.properties import layers_of


@cache
def matrix_speed(device: torch.device, dtype: torch.dtype) -> float:
    """Returns the operations per second of a large matrix product on ``device``, measured once within
    hundredths of a second."""
    is_cuda = device.type == "cuda"
    size = 4096 if is_cuda else 1024 if dtype == torch.float32 else 512
    repeats = 20 if is_cuda else 2
    left = torch.ones(size, size, device=device, dtype=dtype)
    right = torch.ones_like(left)
    best = float("inf")
    for _ in range(3):  # the first warms up
        wait_for(device)
        start = time.perf_counter()
        for _ in range(repeats):
            left @ right
        wait_for(device)
        best = min(best, time.perf_counter() - start)
    if is_cuda:
        del left, right
        torch.cuda.reset_peak_memory_stats(device)
    return repeats * 2.0 * size**3 / best


def wait_for(device: torch.device) -> None:
    """Waits until the device has done all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_gb(device: torch.device) -> float:
    """Returns the peak memory so far, in GiB: of tensors on a GPU, of this process elsewhere; NaN on Windows,
    which does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if sys.platform == "win32":
        return math.nan
    import resource  # Windows has no such module

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


class TowerCost:
    """Floating-point operations of one training pass of a tower over real tokens.

    Linear layers take two for each weight and token; attention takes its two products over the whole
    sequence. Backward is twice forward, or once for weights that are frozen under trained ones; a frozen
    tower has none. In a last layer that is read at one token, the other tokens need only keys and values.
    Work that no vector needs, or that is repeated to save memory, does not count.
    """

    def __init__(self, tower: Encoder) -> None:
        is_trained = any(parameter.requires_grad for parameter in tower.parameters())
        frozen = _linear_weights(tower.backbone, trained=False) / max(_linear_weights(tower.backbone), 1)
        passes = 3 - frozen if is_trained else 1
        layers = int(getattr(tower.config, "num_hidden_layers", 0))
        width = int(tower.config.hidden_size)
        of_tokens = _linear_weights(tower.backbone)
        of_sequences = 0
        if tower.fast.prunes_last_layer:
            of_sequences = _linear_weights(layers_of(tower.backbone)[-1]) - 2 * width * width
            of_tokens += 2 * width - of_sequences  # attention of the one token to all
            layers -= 1
        self._per_token = passes * 2.0 * of_tokens
        self._per_sequence = passes * 2.0 * of_sequences
        self._per_pair = (3 if is_trained else 1) * 4.0 * layers * width

    def of(self, lengths: Tensor) -> float:
        """Returns the operations for sequences with these lengths (N,)."""
        exact = lengths.to(torch.float64)
        return (
            self._per_token * float(exact.sum())
            + self._per_sequence * len(lengths)
            + self._per_pair * float(exact.square().sum())
        )


def _linear_weights(module: nn.Module, *, trained: bool | None = None) -> int:
    """Returns the number of weights of linear layers: all of them, or only the ``trained`` or the frozen
    ones."""
    weights = (part.weight for part in module.modules() if isinstance(part, nn.Linear))
    return sum(weight.numel() for weight in weights if trained in (None, weight.requires_grad))
