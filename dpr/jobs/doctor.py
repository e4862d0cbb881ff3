"""``dpr doctor``: a report on this installation, for a first look and for bug reports; ``dpr verify``: a
comparison of an output's files with those that were written."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from dpr.core.cores import usable_cores
from dpr.core.errors import ConfigError, InputError
from dpr.core.machine import version_of
from dpr.core.settings import Settings, setting
from dpr.core.version import __version__

CORE = (
    "torch transformers tokenizers safetensors datasets numpy scipy hydra-core omegaconf pyyaml faiss-cpu"
    " bm25s pytrec-eval-terrier regex tqdm".split()
)
_EXTRAS = {
    "tensorboard": ("tb", "curves in TensorBoard (tracking.tensorboard=true)"),
    "peft": ("lora", "LoRA adapters (encoder.adapter=lora)"),
    "onnxruntime": ("onnx", "serving without torch (dpr export to=onnx)"),
    "wandb": ("wandb", "curves in Weights & Biases (tracking.wandb=true)"),
    "sentence-transformers": ("sentence-transformers", "checks of exported folders (dpr export)"),
    "lancedb": ("stores", "export to a vector store (dpr export vectors=...)"),
    "mteb": ("mteb", "evaluation on mteb's tasks (dpr.MtebModel)"),
    "pytest": ("dev", "the tests (make test)"),
    "markitdown": ("documents", "reading HTML, PDF, Word and others (dpr quickstart FOLDER)"),
    "ray": ("ray", "embedding on a cluster (dpr embed cluster=ray)"),
    "fastapi": ("serve", "the search server (dpr serve)"),
}


@dataclass
class DoctorSettings(Settings):
    """Prints versions, devices, free disk space and what the optional packages would add, without loading any
    of them. For the folder of a run, reports common problems that its metrics show, with figures and
    advice."""

    run: str | None = setting(None, operand="[RUN]", path="input")
    """Folder of a training run, finished or not."""


def run(config: DoctorSettings) -> int:
    """Prints the report; returns 0, 1 when the run has a fault, or 2 when a required package is missing."""
    from dpr.storage.checksums import cache_root

    if config.run is not None:
        return _look_at_run(Path(config.run))
    versions = {name: version_of(name) for name in CORE}
    print(f"dpr {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name, version in versions.items():
        print(f"  {name:<22} {version or 'MISSING'}")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    cards = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    print(f"Machine\n  CPU: {usable_cores()} cores of {os.cpu_count()}\n  memory: {memory:.1f} GB")
    print(f"  NVIDIA GPUs: {cards or 'none'}\nDisk")
    places = {"working directory": Path.cwd(), "cache of parsed data (DPR_CACHE)": cache_root(None)}
    for name, place in places.items():
        existing = next(path for path in [place, *place.parents] if path.exists())
        note = "" if os.access(existing, os.W_OK) else ", NOT WRITABLE"
        print(f"  {name}: {shutil.disk_usage(existing).free / 1e9:.1f} GB free{note}")
    print("Optional packages, and what they are for")
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
    from dpr.evaluation.runs import read_training
    from dpr.evaluation.symptoms import symptoms
    from dpr.formats.run_folders import METRICS_LINES

    run = read_training(folder)
    is_trained = (folder / METRICS_LINES).is_file() or any(folder.glob(f"*/{METRICS_LINES}"))
    if run is None or not is_trained:  # a fitted layer has a run.json alone
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
    faults = list(symptoms(run))
    for name, seen, advice in faults:
        print(f"\n{name} (docs/troubleshooting.md)\n  seen: {seen}\n  try:  {advice}")
    if not faults:
        print("the metrics show no fault")
    return 1 if faults else 0


_MOST_NAMED = 200


@dataclass
class VerifySettings(Settings):
    """Compares every file of a folder with the size and SHA-256 in its manifest.json. In a folder without a
    manifest, for example of a run, it checks all parts that have one or should have one, and the files with a
    NAME.sha256 beside them. It lists the files without a checksum. The checksums of a run are in run.json: of
    itself, of the JSON files beside it, and of metrics.jsonl at the last checkpoint. Exits with 3 if a file
    differs, or if no file has a checksum."""

    paths: list[str] = setting(list, operand="PATH ...", path="input")
    """Folders and files that a command wrote."""

    def check_together(self, prefix: str) -> None:
        for name in self.paths:
            if not Path(name).exists():
                raise ConfigError(f"{name}: no such file or folder")


def verify(config: VerifySettings) -> int:
    """Prints what is wrong with each path; returns 0 when all are intact, else 3."""
    from dpr.formats.run_folders import METRICS_LINES, is_visible, problems_below
    from dpr.storage.durable import CHECKSUM

    is_whole = True
    for path in map(Path, config.paths):
        found = problems_below(path)
        for part, problems in found.items():
            good = "good up to the last checkpoint" if part.name == METRICS_LINES else "good"
            print("\n".join(f"{part}: {problem}" for problem in problems or [good]))
            is_whole = is_whole and not problems
        # The files outside all of its parts.
        known = set(found)
        rest = [
            str(file.relative_to(path))
            for file in sorted(path.rglob("*"))
            if file.is_file()
            and file.suffix != CHECKSUM
            and is_visible(file, path)
            and not known & {file, *file.parents}
        ]
        if rest:
            more = f" and {len(rest) - _MOST_NAMED} more" if len(rest) > _MOST_NAMED else ""
            print(f"{path}: files without a checksum: {', '.join(rest[:_MOST_NAMED])}{more}")
    return 0 if is_whole else 3
