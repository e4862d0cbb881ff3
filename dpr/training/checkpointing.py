"""The checkpoints of a run: saving and keeping them, their content, and the choice of the one to resume."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dpr.core.distributed import from_main, full_on_main, gather_rows, is_sharded, largest_over_ranks, on_main
from dpr.core.errors import CheckpointError, ConfigError, DivergedError, InputError
from dpr.core.logs import get_logger
from dpr.formats import checkpoints, run_folders
from dpr.formats.run_folders import checkpoint_name
from dpr.models.towers import Towers
from dpr.storage.durable import durable_folder, remove_folder, verify_folder
from dpr.storage.leftovers import (
    HOST_BYTES,
    ProcessName,
    remove_leftovers,
    this_process,
)
from dpr.storage.locks import RunLock
from dpr.storage.untrusted import inside, read_json
from dpr.training.optimizer import optimizer_tensors, restore_optimizer
from dpr.training.run import Callback, RunProgress, StoredRun

logger = get_logger(__name__)

MOST_FAILED_SAVES = 3


class CheckpointFolder:
    """The checkpoints of one run: ``<output_dir>/dpr_biencoder.step<N>``. Every rank calls its methods, and
    all learn the outcome together."""

    def __init__(self, output_dir: Path, *, keep_last: int = 3) -> None:
        self.output_dir = output_dir
        self.keep_last = keep_last
        self.lock = RunLock(output_dir)
        self._failed_saves = 0

    def prepare(self) -> None:
        """Makes the folder, takes its lock, and removes files left by a killed save.

        Raises:
            CheckpointError: the folder cannot be written, or another run is using it.
        """
        # The processes of all ranks, known on every rank. Text is sent as numbers.
        mine = this_process()
        host = mine.host.encode()[:HOST_BYTES].ljust(HOST_BYTES, b"\0")
        rows = gather_rows(torch.tensor([[mine.pid, mine.start, *host]], dtype=torch.int64)).tolist()
        processes = [
            ProcessName(bytes(row[2:]).rstrip(b"\0").decode("utf-8", "replace"), row[0], row[1])
            for row in rows
        ]

        def make() -> None:
            try:
                self.output_dir.mkdir(parents=True, exist_ok=True)
                self.lock.acquire(processes)  # writes and renames a file, as saving will
                remove_leftovers(self.output_dir)
            except OSError as error:
                raise CheckpointError(
                    f"cannot be written ({error.strerror})",
                    file=self.output_dir,
                    hint="set output_dir to a folder you may write to",
                ) from error

        on_main(make)

    def note_stop(self, step: int) -> None:
        """Notes in ``run.json`` that the run was asked to stop and can be resumed, since launchers hide exit
        codes. The next save removes the note."""
        file = self.output_dir / run_folders.RUN_FILE
        on_main(lambda: run_folders.write_run(self.output_dir, {**read_json(file), "stopped_at_step": step}))

    def stored_run(self, *, fresh: bool = False) -> StoredRun | None:
        """Returns the newest intact checkpoint, the same on all ranks; None if the run has none. If a save was
        killed after its checkpoint was complete but before ``run.json`` named it, names it now.

        With ``fresh`` there must be none. Damaged ones are then moved aside, so that later starts do not find
        them.

        Raises:
            CheckpointError: there are checkpoints, but every one is damaged.
            ConfigError: ``fresh``, and there is one to resume.
        """
        folders: list[Path] = []

        def find() -> None:
            damaged: dict[Path, list[str]] = {}
            for folder in run_folders.checkpoint_folders(self.output_dir):
                if not (problems := verify_folder(folder)):
                    folders.append(folder)
                    break
                damaged[folder] = problems
                logger.warning(
                    "%s is damaged (%s); trying the one before it", folder, "; ".join(problems[:3])
                )
            if fresh and folders:
                raise ConfigError(
                    f"{self.output_dir} holds a run already; choose a new output_dir, or resume=auto to"
                    " continue it"
                )
            if fresh:
                for folder in damaged:
                    aside = folder.with_name(f"damaged-{folder.name}")
                    shutil.rmtree(aside, ignore_errors=True)
                    folder.rename(aside)
                    logger.warning("%s is now %s", folder, aside.name)
            elif damaged and not folders:
                reasons = "".join(
                    f"\n  {folder.name}: {'; '.join(problems[:3])}" for folder, problems in damaged.items()
                )
                raise CheckpointError(
                    f"all {len(damaged)} checkpoints are damaged",
                    file=self.output_dir,
                    hint=(
                        "resume=fresh moves them aside and starts at step 0; or choose a new"
                        f" output_dir{reasons}"
                    ),
                )

        on_main(find)
        step = from_main(_step_of(folders[0]) if folders else -1)
        if step < 0:
            return None
        folder = self.output_dir / checkpoint_name(step)
        progress, identity = self.read_state(folder)

        def publish() -> None:
            last = None
            with suppress(InputError, AttributeError):  # missing or damaged
                last = read_json(self.output_dir / run_folders.RUN_FILE).get("last_checkpoint")
            if last != folder.name:
                self._publish(folder, progress)

        on_main(publish)
        return StoredRun(folder, progress, identity)

    def save(
        self,
        progress: RunProgress,
        write: Callable[[Path], None],
        identity: dict[str, Any],
        config: dict[str, Any],
    ) -> Path | None:
        """Writes a checkpoint on rank 0, which calls ``write`` with its folder. Then points ``run.json`` at
        it and removes the oldest beyond ``keep_last``, but never the best.

        If the disk is full or fails, only this checkpoint is lost: a warning is logged, None is returned, and
        the next one is tried when it is due.

        Raises:
            CheckpointError: that happened three times in a row, or another run has taken over the folder.
        """
        folder = self.output_dir / checkpoint_name(progress.step)
        # not the errors themselves: their frames would keep the batches, and so the workers, alive
        failures: list[str] = []

        def save() -> None:
            if not self.lock.is_ours():
                raise CheckpointError(
                    "run.lock no longer belongs to this run: the folder was moved or emptied, or another run"
                    " has taken it over",
                    file=self.output_dir,
                    hint=(
                        "only one run may write here; if it was moved, run the same command with the new"
                        " output_dir"
                    ),
                )
            try:
                metadata = {"kind": "checkpoint", "step": progress.step}
                with durable_folder(folder, overwrite=True, metadata=metadata) as temporary:
                    write(temporary)
                    state = {"progress": asdict(progress), "identity": identity}
                    checkpoints.write_json_file(temporary, checkpoints.STATE_FILE, state)
                    checkpoints.write_json_file(temporary, checkpoints.CONFIG_FILE, config)
                self._publish(folder, progress)
            except OSError as error:
                failures.append(error.strerror or str(error))

        on_main(save)
        if not largest_over_ranks(len(failures)):
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
                "%s cannot be written%s; earlier checkpoints are intact, and the next one is tried when it"
                " is due",
                folder,
                reason,
            )
        return None

    def require_saved(self, step: int) -> None:
        """Raises CheckpointError at the end of a run if its last checkpoint could not be written."""
        if self._failed_saves:
            raise CheckpointError(
                f"the run has ended at step {step}, but that step could not be saved",
                file=self.output_dir,
                hint=(
                    "free some space and rerun the same command; it resumes from the last intact checkpoint,"
                    " if there is one"
                ),
            )

    def _publish(self, folder: Path, progress: RunProgress) -> None:
        metrics = {run_folders.METRICS_RECORD: run_folders.describe_metrics(self.output_dir)}
        run_folders.write_run(self.output_dir, {"last_checkpoint": folder.name, **progress.best(), **metrics})
        # Checkpoints with a higher step are damaged ones that this run has fallen back from. They do not
        # count as kept.
        kept = [
            path
            for path in run_folders.checkpoint_folders(self.output_dir)
            if _step_of(path) <= progress.step
        ]
        for old in kept[self.keep_last :] if self.keep_last else []:
            if _step_of(old) and old.name not in (
                folder.name,
                progress.best_checkpoint,
            ):  # step 0 is kept for train.keep=better
                remove_folder(old)

    @staticmethod
    def read_state(folder: Path) -> tuple[RunProgress, dict[str, Any]]:
        """Returns progress and identity as stored."""
        state = read_json(folder / checkpoints.STATE_FILE)
        try:
            progress = RunProgress(**state["progress"])
            identity = dict(state["identity"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"lacks what is needed to resume ({error})", file=folder / checkpoints.STATE_FILE
            ) from error
        if progress.best_checkpoint is not None:
            inside(
                folder.parent, progress.best_checkpoint, stated_in=f"{folder.name}/{checkpoints.STATE_FILE}"
            )
        return progress, identity


def _step_of(folder: Path) -> int:
    return int(folder.name.rpartition("step")[2])


@dataclass(frozen=True, slots=True)
class StateOfRun:
    """State of a run that a checkpoint holds besides its progress and identity."""

    model: Towers
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    callbacks: Sequence[Callback]

    def collect(self) -> Callable[[Path], None]:
        """Returns the function that rank 0 calls with the folder of a new checkpoint. All ranks collect
        together: tensors spread over them become whole in the memory of rank 0. The function raises
        DivergedError if a weight is NaN or infinite."""
        weights = self.model.weights()
        optimizer = optimizer_tensors(self.model, self.optimizer)
        if any(map(is_sharded, weights.values())):
            weights = full_on_main(weights)
            optimizer = full_on_main(optimizer)

        def write(folder: Path) -> None:
            for name, tensor in weights.items():
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise DivergedError(
                        f"{name} is NaN or infinite, so no checkpoint is written; lower train.learning_rate,"
                        " or use train.precision=fp32. Earlier checkpoints are intact"
                    )
            self.model.write_to(folder, weights)
            checkpoints.write_tensors(folder, checkpoints.OPTIMIZER_FILE, optimizer)
            checkpoints.write_json_file(folder, checkpoints.SCALER_FILE, self.scaler.state_dict())
            states = {
                name: state
                for name, callback in self._callbacks_by_name()
                if (state := callback.state_dict())
            }
            checkpoints.write_json_file(folder, checkpoints.CALLBACKS_FILE, states)

        return write

    def read(self, folder: Path) -> None:
        """Restores the whole state."""
        self.model.load_weights(checkpoints.read_tensors(folder, checkpoints.MODEL_FILE), source=folder)
        state = checkpoints.read_tensors(folder, checkpoints.OPTIMIZER_FILE)
        restore_optimizer(self.model, self.optimizer, state)
        self.scaler.load_state_dict(read_json(folder / checkpoints.SCALER_FILE))
        states = read_json(folder / checkpoints.CALLBACKS_FILE)
        for name, callback in self._callbacks_by_name():
            if name in states:
                callback.load_state_dict(states[name])

    def _callbacks_by_name(self) -> Iterator[tuple[str, Callback]]:
        """Yields callbacks by name; the second of a name is ``Name#2``."""
        seen = Counter[str]()
        for callback in self.callbacks:
            name = callback.state_key
            seen[name] += 1
            yield (name if seen[name] == 1 else f"{name}#{seen[name]}"), callback
