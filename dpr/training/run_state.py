"""Where a run is, and the folder of its checkpoints: saving, finding and keeping them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from dpr.core.distributed import from_main, gather_rows, on_main
from dpr.core.errors import CheckpointError, ConfigError
from dpr.core.logs import get_logger
from dpr.formats import checkpoints
from dpr.formats.checksums import describe_start
from dpr.formats.durable import durable_folder, read_json, remove_folder, verify_folder, write_json
from dpr.formats.leftovers import HOST_BYTES, ProcessName, remove_leftovers, this_process
from dpr.formats.run_lock import RunLock
from dpr.training.metrics import Metrics

logger = get_logger(__name__)

MOST_FAILED_SAVES = 3


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


class CheckpointFolder:
    """The checkpoints of one run: ``<output_dir>/<name>.step<N>``. Every rank calls its methods, and all learn the outcome together."""

    def __init__(self, output_dir: Path, name: str, *, keep_last: int = 3) -> None:
        self.output_dir, self.name, self.keep_last = output_dir, name, keep_last
        self.lock = RunLock(output_dir)
        self._failed_saves = 0

    def prepare(self) -> None:
        """Makes the folder, takes its lock, and clears what a killed save left behind.

        Raises:
            CheckpointError: the folder cannot be written, or another run is at work there.
        """
        processes = _all_processes()

        def make() -> None:
            try:
                self.output_dir.mkdir(parents=True, exist_ok=True)
                self.lock.acquire(processes)  # a file written and renamed: what saving will need too
                remove_leftovers(self.output_dir)
            except OSError as error:
                raise CheckpointError(
                    f"cannot be written ({error.strerror})", file=self.output_dir, hint="set output_dir to a folder you may write to"
                ) from error

        on_main(make)

    def note_stop(self, step: int) -> None:
        """Notes in ``run.json`` that the run was asked to stop and can go on; launchers hide exit codes. The next save takes it out."""

        def write() -> None:
            file = self.output_dir / checkpoints.RUN_FILE
            write_json(file, {**read_json(file), "stopped_at_step": step})

        on_main(write)

    def release(self) -> None:
        """Gives the folder back."""
        self.lock.release()

    def newest(self, *, start_afresh: bool = False) -> Path | None:
        """The newest checkpoint that is whole, the same on all ranks; None when the run has none.

        With ``start_afresh`` there must be none; damaged ones are set aside, so that they are not met again.

        Raises:
            CheckpointError: there are checkpoints, but every one is damaged.
            ConfigError: ``start_afresh``, and there is one to go on from.
        """
        found: list[Path] = []

        def find() -> None:
            damaged: dict[Path, list[str]] = {}
            for folder in checkpoints.checkpoint_folders(self.output_dir, self.name):
                if not (problems := verify_folder(folder)):
                    found.append(folder)
                    break
                damaged[folder] = problems
                logger.warning("%s is damaged (%s); trying the one before it", folder, "; ".join(problems[:3]))
            if start_afresh and found:
                raise ConfigError(f"{self.output_dir} holds a run already; choose a new output_dir, or resume=auto to continue it")
            if start_afresh:
                self._set_aside(damaged)
            elif damaged and not found:
                reasons = "".join(f"\n  {folder.name}: {'; '.join(problems[:3])}" for folder, problems in damaged.items())
                raise CheckpointError(
                    f"all {len(damaged)} checkpoints are damaged",
                    file=self.output_dir,
                    hint=f"resume=fresh moves them aside and starts at step 0; or choose a new output_dir{reasons}",
                )

        on_main(find)
        step = from_main(_step_of(found[0]) if found else -1)
        return None if step < 0 else self.output_dir / f"{self.name}.step{step}"

    def _set_aside(self, folders: Iterable[Path]) -> None:
        for folder in folders:
            aside = folder.with_name(f"damaged-{folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
            logger.warning("%s is now %s", folder, aside.name)

    def save(self, progress: Progress, write: Callable[[Path], None], identity: dict[str, Any], config: dict[str, Any]) -> Path | None:
        """Writes a checkpoint on rank 0, points ``run.json`` at it, and removes the oldest beyond ``keep_last`` (never the best).

        A disk that is full or fails costs this checkpoint only: a warning, None is returned, and the next one is tried when it is due.

        Raises:
            CheckpointError: that happened three times in a row, or another run has taken the folder over.
        """
        folder = self.output_dir / f"{self.name}.step{progress.step}"
        failures: list[str] = []  # not the errors: their frames would keep the batches, and so the workers, alive

        def save() -> None:
            if not self.lock.is_held():
                raise CheckpointError(
                    "run.lock is not that of this run any more: the folder was moved or emptied, or another run has taken it over",
                    file=self.output_dir,
                    hint="only one run may write here; if it was moved, run the same command with the new output_dir",
                )
            try:
                self._write(folder, progress, write, identity, config)
            except OSError as error:
                failures.append(error.strerror or str(error))

        on_main(save)
        if not from_main(len(failures)):
            self._failed_saves = 0
            return folder
        self._failed_saves += 1
        reason = f": {failures[0]}" if failures else ""
        if self._failed_saves >= MOST_FAILED_SAVES:
            raise CheckpointError(
                f"cannot be written{reason}, the {MOST_FAILED_SAVES}rd time in a row",
                file=folder,
                hint="free some space and rerun the same command to resume from the last checkpoint",
            )
        if failures:
            logger.warning(
                "%s cannot be written%s; earlier checkpoints are intact, and the next one is tried when it is due", folder, reason
            )
        return None

    def _write(
        self, folder: Path, progress: Progress, write: Callable[[Path], None], identity: dict[str, Any], config: dict[str, Any]
    ) -> None:
        with durable_folder(folder, overwrite=True, metadata={"kind": "checkpoint", "step": progress.step}) as temporary:
            write(temporary)
            state = {"progress": asdict(progress), "identity": identity}
            checkpoints.write_json_file(temporary, checkpoints.STATE_FILE, state)
            checkpoints.write_json_file(temporary, checkpoints.CONFIG_FILE, config)
        best = {key: value for key, value in asdict(progress).items() if key.startswith("best_")}
        metrics = {checkpoints.METRICS_RECORD: describe_start(self.output_dir / checkpoints.METRICS_LINES)}
        write_json(self.output_dir / checkpoints.RUN_FILE, {"last_checkpoint": folder.name, **best, **metrics})
        self._prune(keep={folder.name, progress.best_checkpoint}, newest=progress.step)

    def _prune(self, keep: set[str | None], newest: int) -> None:
        """Removes the oldest. Those with a higher step are damaged ones that this run has fallen back from; they do not count as kept."""
        if self.keep_last:
            folders = [folder for folder in checkpoints.checkpoint_folders(self.output_dir, self.name) if _step_of(folder) <= newest]
            for folder in folders[self.keep_last :]:
                if folder.name not in keep:
                    remove_folder(folder)

    @staticmethod
    def read_state(folder: Path) -> tuple[Progress, dict[str, Any]]:
        """Progress and identity as stored."""
        state = read_json(folder / checkpoints.STATE_FILE)
        try:
            return Progress(**state["progress"]), dict(state["identity"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"lacks what is needed to resume ({error})", file=folder / checkpoints.STATE_FILE) from error


def _step_of(folder: Path) -> int:
    return int(folder.name.rpartition("step")[2])


def _all_processes() -> list[ProcessName]:
    """The process of every rank, on every rank. Text travels as numbers."""
    mine = this_process()
    host = mine.host.encode()[:HOST_BYTES].ljust(HOST_BYTES, b"\0")
    rows = gather_rows(torch.tensor([[mine.pid, mine.start, *host]], dtype=torch.int64)).tolist()
    return [ProcessName(bytes(row[2:]).rstrip(b"\0").decode("utf-8", "replace"), row[0], row[1]) for row in rows]
