"""What a part found, written as it comes, and the bars it is judged by."""

from __future__ import annotations

import datetime
import os
import platform
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dpr.storage.durable import write_json

PEAK = 989e12
"""bf16 operations per second of an H100 or H200 (SXM) by its data sheet, without sparsity."""
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "peft", "pytest")


@dataclass(frozen=True)
class Bar:
    """``most`` or ``least`` is what a result may or must be."""

    what: str
    least: float | None = None
    most: float | None = None

    def is_met(self, found: float) -> bool:
        return (self.least is None or found >= self.least) and (self.most is None or found <= self.most)

    @property
    def text(self) -> str:
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"


BARS = {
    "training": Bar("share of 989 TFLOP/s in training", least=0.50),
    "embedding": Bar("share of 989 TFLOP/s in embedding", least=0.55),
    "caching": Bar("time of a step with gradient caching / time of a direct one", most=1.38),
    "search": Bar("time of exact search / time of its limit", most=1.5),
    "synchronisations": Bar("times the host waited for the device between log lines", most=0),
    "failures": Bar("tests that failed", most=0),
}


class Record:
    """The results of one part: ``PART.json`` in ``folder`` (None: nowhere), rewritten with every result."""

    def __init__(
        self, part: str, folder: Path | None, device: torch.device, *, is_rehearsal: bool = False
    ) -> None:
        self.device, self.is_rehearsal = device, is_rehearsal
        self._file = folder / f"{part}.json" if folder is not None else None
        self._start = time.perf_counter()
        self.results: dict[str, Any] = {}
        self.verdicts: dict[str, dict[str, Any]] = {}
        self._stored = {
            "part": part,
            "state": "running",
            "is_rehearsal": is_rehearsal,
            "command": " ".join(["python -m benchmarks.gpu", *sys.argv[1:]]),
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": machine(device),
            "results": self.results,
            "bars": self.verdicts,
        }
        self._write()

    def add(self, name: str, value: Any) -> None:
        """A result: a number, a text, or a list or dictionary of them. Prints and stores it."""
        self.results[name] = value
        shown = f"{value:,.4g}" if isinstance(value, float) else value
        print(f"  {name}: {shown}", flush=True)
        self._write()

    def judge(self, name: str, found: float) -> None:
        """Compares a result with the bar of that name."""
        bar = BARS[name]
        verdict = "not judged: a rehearsal" if self.is_rehearsal else "met" if bar.is_met(found) else "MISSED"
        self.verdicts[name] = {"what": bar.what, "bar": bar.text, "found": found, "verdict": verdict}
        print(f"  * {bar.what}: {found:.3g}, {bar.text}: {verdict}", flush=True)
        self._write()

    def end(self, state: str) -> None:
        """``done``, or why it is not."""
        self._stored["state"] = state
        self._write()

    def _write(self) -> None:
        self._stored["seconds"] = round(time.perf_counter() - self._start, 1)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, self._stored)


def machine(device: torch.device) -> dict[str, Any]:
    """Device, its memory, cores and versions."""
    found: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
        found |= {
            "device": properties.name,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "capability": capability,
        }
        found |= {"cuda": torch.version.cuda}
    return found | ({} if "device" in found else {"device": device.type})
