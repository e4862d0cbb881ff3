"""How things are timed: sides take turns, every number is a ratio to a partner measured seconds before it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Figures:
    """One side: ``rates`` in units per second and ``shares`` of the matrix-product peak, one value a
    round."""

    rates: list[float]
    shares: list[float]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def share(self) -> float:
        return statistics.median(self.shares)

    def ratios_to(self, other: Figures) -> list[float]:
        """How many times as fast this side is, a round."""
        return [mine / theirs for mine, theirs in zip(self.rates, other.rates, strict=True)]


def median_and_range(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, least and greatest."""
    return statistics.median(values), min(values), max(values)


class PeakMemory:
    """The greatest anonymous resident memory of this process since ``__init__``, above what it was then.
    Linux only."""

    def __init__(self) -> None:
        self._before = _status_kib("RssAnon")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM starts again
        self._files = _status_kib("RssFile")

    @property
    def mb(self) -> float:
        """In MB of 2^20 bytes."""
        return (_status_kib("VmHWM") - self._files - self._before) / 1024


def _status_kib(key: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith(key + ":")).split()[1])


def matrix_peak(
    device: torch.device, size: int = 2048, repeats: int = 3, dtype: torch.dtype = torch.float32
) -> float:
    """Floating-point operations per second of a plain matrix product with the threads of this process; on a
    CPU in fp32."""
    # half precision takes minutes where a CPU has no instructions for it
    dtype = torch.float32 if device.type == "cpu" else dtype
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    left @ right
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        left @ right
    synchronize(device)
    return repeats * 2 * size**3 / (time.perf_counter() - start)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def take_turns(
    sides: Mapping[str, Callable[[], object]],
    *,
    units: float,
    flops: float,
    rounds: int,
    device: torch.device,
    warmups: int = 1,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Figures]:
    """Runs every side once a round; each does ``units`` of work, which takes ``flops`` operations on real
    tokens.

    The peak, of products in ``dtype``, is measured before and after each side, so that a slow minute of the
    machine slows both.
    """
    shape = {"size": 8192, "repeats": 10} if device.type == "cuda" else {}
    figures = {name: Figures([], []) for name in sides}
    for number in range(warmups + rounds):
        for name, work in sides.items():
            peak = matrix_peak(device, dtype=dtype, **shape)
            start = time.perf_counter()
            work()
            synchronize(device)
            elapsed = time.perf_counter() - start
            peak = (peak + matrix_peak(device, dtype=dtype, **shape)) / 2
            if number >= warmups:
                figures[name].rates.append(units / elapsed)
                figures[name].shares.append(flops / elapsed / peak)
    return figures


def table(figures: Mapping[str, Figures], *, ours: str, unit: str) -> str:
    """A Markdown table: rate, share of peak, and how many times faster ours is."""
    lines = [f"| | {unit} | share of peak | ours is faster by |", "|---|---:|---:|---:|"]
    for name, side in figures.items():
        median, low, high = median_and_range(figures[ours].ratios_to(side))
        ratio = "" if name == ours else f"{median:.2f} ({low:.2f} to {high:.2f})"
        rate = f"{side.rate:,.0f}" if side.rate >= 10 else f"{side.rate:.2f}"
        lines.append(f"| {name} | {rate} | {side.share:.0%} | {ratio} |")
    return "\n".join(lines)
