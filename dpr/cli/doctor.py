"""``dpr doctor``: what this installation has, for a first look and for bug reports."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys

import dpr

_USAGE = "Usage: dpr doctor\n\nPrints versions, devices, free disk space and what the optional packages would add.\n"
_CORE = (
    "torch transformers tokenizers safetensors datasets numpy hydra-core omegaconf faiss-cpu bm25s pytrec-eval-terrier regex tqdm".split()
)
_EXTRAS = {
    "tensorboard": ("tb", "curves in TensorBoard"),
    "wandb": ("wandb", "curves in Weights & Biases"),
}


def main(argv: list[str]) -> int:
    """Prints the report; 0 when every needed package is there, 2 when one is missing."""
    if {"--help", "-h"} & set(argv):
        print(_USAGE, end="")
        return 0
    versions = {name: _version(name) for name in _CORE}
    print(f"dpr {dpr.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name, version in versions.items():
        print(f"  {name:<20} {version or 'MISSING'}")
    print("Devices")
    for line in _devices(bool(versions["torch"])):
        print(f"  {line}")
    print("Disk")
    free = shutil.disk_usage(".").free / 1e9
    print(f"  {free:.1f} GB free in the working directory")
    print("Optional")
    for name, (extra, gives) in _EXTRAS.items():
        version = _version(name)
        print(f"  {name:<20} {version or f'absent; pip install dpr[{extra}]'} ({gives})")
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        print(f"error: missing {', '.join(missing)}; install dpr again", file=sys.stderr)
    return 2 if missing else 0


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices(has_torch: bool) -> list[str]:
    lines = [f"CPU: {os.cpu_count()} cores"]
    if has_torch:
        import torch

        for number in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(number)
            lines.append(f"cuda:{number}: {facts.name}, {facts.total_memory / 1e9:.0f} GB")
        if not torch.cuda.is_available():
            lines.append("CUDA: none that torch can use")
    return lines
