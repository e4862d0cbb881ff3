"""Speed and memory of the device that trains."""

from __future__ import annotations

import math
import sys
import time
from functools import cache

import torch


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
