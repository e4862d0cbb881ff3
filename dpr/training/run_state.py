"""Where a run is, what it is, and how it is stored: saving, finding and resuming checkpoints."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.distributed import from_main, on_main
from dpr.core.errors import CheckpointError
from dpr.core.logs import get_logger
from dpr.formats import checkpoints
from dpr.formats.durable import durable_folder, read_json, remove_leftovers, verify_folder, write_json
from dpr.training.metrics import Metrics

logger = get_logger(__name__)


@dataclass
class Progress:
    """How far a run is. One integer decides the next batch, its negatives and its dropout."""

    step: int = 0
    """Optimizer updates done."""
    schedule_start: int = 0
    """The step at which the learning-rate schedule began."""
    best_metric: str | None = None
    best_value: float | None = None
    best_checkpoint: str | None = None
    last_metrics: Metrics = field(default_factory=dict)
    """Figures of the last validation."""

    def summary(self) -> dict[str, Any]:
        """What ``metrics.json`` holds: the figures of the last validation, and the best."""
        best = {"best_metric": self.best_metric, "best_value": self.best_value, "best_checkpoint": self.best_checkpoint}
        return {"step": self.step, **self.last_metrics, **best}

    def is_improved_by(self, metric: str, value: float, *, highest: bool = False) -> bool:
        """Whether ``value`` is the best so far: the lowest, or the highest; another metric than before starts afresh."""
        if self.best_metric != metric or self.best_value is None or math.isnan(self.best_value):
            return True
        return value > self.best_value if highest else value < self.best_value


@dataclass(frozen=True)
class RunIdentity:
    """What must be equal for a resumed run to see the same batches and the same objective, and what may change with a word of warning.

    Keys are the settings' names, so that a refusal can name the override that mends it.
    """

    fixed: dict[str, Any]
    free: dict[str, Any]

    def check(self, stored: dict[str, Any], *, source: Path, force: bool) -> None:
        """Compares with a checkpoint's identity.

        Raises:
            CheckpointError: a fixed setting differs and ``force`` is off.
        """
        own = json.loads(json.dumps({"fixed": self.fixed, "free": self.free}))
        changed = _differences(stored.get("fixed", {}), own["fixed"])
        if changed and not force:
            key, (was, now) = next(iter(changed.items()))
            raise CheckpointError(
                f"was written by a different run: {key} was {was}, is now {now}"
                + (f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""),
                file=source,
                expected="the same data, order and objective",
                hint=f"restore {key}, choose a new output_dir, or set resume=force to go on with another order of samples",
            )
        for key, (was, now) in (changed | _differences(stored.get("free", {}), own["free"])).items():
            logger.warning("resuming with %s changed from %s to %s%s", key, was, now, _consequence(key))


def environment_facts(world_size: int, device: torch.device) -> dict[str, Any]:
    """What decides the last bits of a sum; a resumed run that differs in one of them is right, but not bitwise equal."""
    return {
        "environment.world_size": world_size,
        "environment.threads": torch.get_num_threads(),
        "environment.torch": torch.__version__,
        "environment.numpy": np.__version__,  # it draws the order of samples
        "environment.device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
    }


def _consequence(key: str) -> str:
    return "; the weights will not be bitwise those of an uninterrupted run" if key.startswith("environment.") else ""


def _differences(stored: dict[str, Any], own: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {key: (stored.get(key), own.get(key)) for key in sorted(stored.keys() | own.keys()) if stored.get(key) != own.get(key)}


class CheckpointFolder:
    """The checkpoints of one run: ``<output_dir>/<name>.step<N>``."""

    def __init__(self, output_dir: Path, name: str, *, keep_last: int = 3) -> None:
        self.output_dir, self.name, self.keep_last = output_dir, name, keep_last

    def prepare(self) -> None:
        """Makes the folder and clears what a killed save left behind. On rank 0; all ranks call it."""

        def make() -> None:
            try:
                self.output_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CheckpointError(
                    f"cannot be made ({error.strerror})", file=self.output_dir, hint="set output_dir to a folder you may write to"
                ) from error
            if not os.access(self.output_dir, os.W_OK):
                raise CheckpointError("is not writable", file=self.output_dir, hint="set output_dir to a folder you may write to")
            remove_leftovers(self.output_dir)

        on_main(make)

    def newest(self) -> Path | None:
        """The newest checkpoint that is whole, the same on all ranks; None when the run has none.

        Raises:
            CheckpointError: there are checkpoints, but every one is damaged.
        """
        found: list[Path] = []

        def find() -> None:
            folders = checkpoints.checkpoint_folders(self.output_dir, self.name)
            for folder in folders:
                problems = verify_folder(folder)
                if not problems:
                    found.append(folder)
                    return
                logger.warning("%s is damaged (%s); trying the one before it", folder, "; ".join(problems[:3]))
            if folders:
                raise CheckpointError(
                    f"all {len(folders)} checkpoints are damaged",
                    file=self.output_dir,
                    hint="move them away or choose a new output_dir to start again",
                )

        on_main(find)
        step = from_main(int(found[0].name.rpartition("step")[2]) if found else -1)
        return None if step < 0 else self.output_dir / f"{self.name}.step{step}"

    def save(self, progress: Progress, write: Callable[[Path], None], identity: RunIdentity, config: dict[str, Any]) -> Path:
        """Writes a checkpoint on rank 0, points ``run.json`` at it, and removes the oldest beyond ``keep_last`` (never the best)."""
        folder = self.output_dir / f"{self.name}.step{progress.step}"

        def save() -> None:
            with durable_folder(folder, overwrite=True, metadata={"kind": "checkpoint", "step": progress.step}) as temporary:
                write(temporary)
                state = {"progress": asdict(progress), "identity": asdict(identity)}
                checkpoints.write_json_file(temporary, checkpoints.STATE_FILE, state)
                checkpoints.write_json_file(temporary, checkpoints.CONFIG_FILE, config)
            write_json(
                self.output_dir / checkpoints.RUN_FILE,
                {"last_checkpoint": folder.name, **{key: value for key, value in asdict(progress).items() if key.startswith("best_")}},
            )
            self._prune(keep={folder.name, progress.best_checkpoint})

        on_main(save)
        return folder

    def _prune(self, keep: set[str | None]) -> None:
        if self.keep_last:
            for folder in checkpoints.checkpoint_folders(self.output_dir, self.name)[self.keep_last :]:
                if folder.name not in keep:
                    shutil.rmtree(folder)

    @staticmethod
    def read_state(folder: Path) -> tuple[Progress, dict[str, Any]]:
        """Progress and identity as stored."""
        state = read_json(folder / checkpoints.STATE_FILE)
        try:
            return Progress(**state["progress"]), dict(state["identity"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"lacks what is needed to go on ({error})", file=folder / checkpoints.STATE_FILE) from error
