"""``dpr doctor``: what this installation has, for a first look and for bug reports."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from dpr.core.errors import InputError
from dpr.core.machine import usable_cores, version_of
from dpr.core.settings import Settings, setting
from dpr.core.version import __version__

CORE = (
    "torch transformers tokenizers safetensors datasets numpy scipy hydra-core omegaconf pyyaml faiss-cpu"
    " bm25s pytrec-eval-terrier regex tqdm".split()
)
_EXTRAS = {
    "tensorboard": ("tb", "curves in TensorBoard (tracking.tensorboard=true)"),
    "peft": ("lora", "adapters (encoder.adapter=lora)"),
    "onnxruntime": ("onnx", "graphs that are served without torch (dpr export to=onnx)"),
    "wandb": ("wandb", "curves in Weights & Biases (tracking.wandb=true)"),
    "sentence-transformers": ("sentence-transformers", "the check of exported folders (dpr export)"),
    "lancedb": ("stores", "vector stores that are filled (dpr export vectors=...)"),
    "mteb": ("mteb", "mteb's tasks (dpr.MtebModel)"),
    "pytest": ("dev", "the tests (make test)"),
    "markitdown": ("documents", "HTML, PDF, Word and other documents of a folder (dpr quickstart FOLDER)"),
    "ray": ("ray", "a cluster of machines (dpr embed cluster=ray)"),
    "fastapi": ("serve", "the service and its page (dpr serve)"),
}


@dataclass
class DoctorSettings(Settings):
    """Prints versions, devices, free disk space and what the optional packages would add, without loading any
    of them. With the folder of a
    run: which usual faults its metrics show, with the figures and what to change."""

    run: str | None = setting(None, operand="[RUN]", path="input")
    """Folder of a training run, finished or not."""


def run(config: DoctorSettings) -> int:
    """Prints the report; returns 0, 1 when the run has a fault, or 2 when a required package is missing."""
    if config.run is not None:
        return _look_at_run(Path(config.run))
    versions = {name: version_of(name) for name in CORE}
    print(f"dpr {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name, version in versions.items():
        print(f"  {name:<22} {version or 'MISSING'}")
    _section("Machine", machine())
    _section("Disk", disks())
    print("Optional")
    for name, (extra, gives) in _EXTRAS.items():
        version = version_of(name)
        print(
            f"  {name:<22} {version or 'absent':<10} {gives}"
            + ("" if version else f'; pip install -e ".[{extra}]"')
        )
    if missing := [name for name, version in versions.items() if version is None]:
        print(f"error: missing {', '.join(missing)}; install dpr again", file=sys.stderr)
        return 2
    return 0


def _look_at_run(folder: Path) -> int:
    from dpr.evaluation.report.reading import read_training
    from dpr.evaluation.symptoms import symptoms

    run = read_training(folder)
    if run is None:
        raise InputError(
            "no training run",
            file=folder,
            expected="a folder with metrics.jsonl, the output_dir of dpr train",
        )
    print(
        f"{folder}: {len(run.logs)} log lines and {len(run.validations)} validations, up to step"
        f" {run.step:.0f}"
    )
    for note in run.notes:
        print(f"  note: {note}")
    faults = symptoms(run)
    for name, seen, advice in faults:
        print(f"\n{name} (docs/troubleshooting.md)\n  seen: {seen}\n  try:  {advice}")
    if not faults:
        print("no fault that its metrics can show")
    return 1 if faults else 0


def _section(title: str, lines: list[str]) -> None:
    print("\n  ".join([title, *lines]))


def machine() -> list[str]:
    """Cores, memory and GPUs, a line each."""
    lines = [f"CPU: {usable_cores()} cores of {os.cpu_count()}"]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        lines.append(f"memory: {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.1f} GB")
    cards = [_model_of(path) for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
    lines += [f"GPU: {card}" for card in cards] or ["GPU: no NVIDIA driver found"]
    return lines


def _model_of(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Model")), "unknown")


def disks() -> list[str]:
    """Free space in the working directory and in the cache, a line each."""
    from dpr.storage.checksums import cache_root

    places = {"working directory": Path.cwd(), "cache of parsed data (DPR_CACHE)": cache_root(None)}
    lines = []
    for name, place in places.items():
        existing = next(path for path in [place, *place.parents] if path.exists())
        note = "" if os.access(existing, os.W_OK) else ", NOT WRITABLE"
        lines.append(f"{name}: {shutil.disk_usage(existing).free / 1e9:.1f} GB free{note}")
    return lines
