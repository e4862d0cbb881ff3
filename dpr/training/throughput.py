"""How much arithmetic a batch is, and how much the device could do."""

from __future__ import annotations

import resource
import sys
import time
from functools import cache

import torch
from torch import Tensor, nn

from dpr.models.encoder import Encoder
from dpr.models.trials import layers_of


class TowerCost:
    """Floating-point operations of one training pass of a tower over real tokens.

    Two for each weight of a linear layer and token, and the two products of attention (counted as over the whole sequence);
    backward is twice forward, and a tower that does not learn has none. Of a last layer that is read at one token of a sequence, all tokens
    need keys and values alone. Work that no vector needs, or that is done twice to save memory, is not counted.
    """

    def __init__(self, tower: Encoder) -> None:
        passes = 3 if any(parameter.requires_grad for parameter in tower.parameters()) else 1
        layers, width = int(getattr(tower.config, "num_hidden_layers", 0)), int(tower.config.hidden_size)
        of_tokens, of_sequences, keys = _linear_weights(tower.backbone), 0, 0
        if tower.fast.prunes_last_layer:
            of_sequences, keys, layers = _linear_weights(layers_of(tower.backbone)[-1]) - 2 * width * width, 2 * width, layers - 1
        self._per_token, self._per_sequence = passes * 2.0 * (of_tokens - of_sequences + keys), passes * 2.0 * of_sequences
        self._per_pair = passes * 4.0 * layers * width

    def of(self, lengths: Tensor) -> float:
        """Of sequences with these lengths (N,)."""
        exact = lengths.to(torch.float64)
        return self._per_token * float(exact.sum()) + self._per_sequence * len(lengths) + self._per_pair * float(exact.square().sum())


def _linear_weights(module: nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


@cache
def matrix_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a large matrix product on ``device``, measured once in some hundredths of a second: what 100 % would be."""
    is_cuda = device.type == "cuda"
    size, repeats = (4096, 20) if is_cuda else (1024 if dtype == torch.float32 else 512, 2)
    left, right = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(3):  # the first warms up
        _wait(device)
        start = time.perf_counter()
        for _ in range(repeats):
            left @ right
        _wait(device)
        best = min(best, time.perf_counter() - start)
    if is_cuda:
        del left, right
        torch.cuda.reset_peak_memory_stats(device)
    return repeats * 2.0 * size**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_gb(device: torch.device) -> float:
    """The most memory that was in use so far, in GiB: of tensors on a GPU, of this process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
