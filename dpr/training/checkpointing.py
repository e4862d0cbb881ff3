"""What a run puts into a checkpoint and takes out of one, and which checkpoint a start resumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpr.core.distributed import current_ranks, from_main, on_main
from dpr.core.errors import ConfigError, DprError
from dpr.formats import checkpoints
from dpr.formats.durable import read_json
from dpr.models.biencoder import BiEncoder
from dpr.training.callbacks.protocol import Callback
from dpr.training.finite_guard import refuse_not_finite
from dpr.training.optimizer import optimizer_tensors, restore_optimizer
from dpr.training.run_state import CheckpointFolder, Progress
from dpr.training.settings import TrainingSettings

SCALER_FILE = "scaler.json"
CALLBACKS_FILE = "callbacks.json"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The checkpoint that a run resumes from."""

    folder: Path
    progress: Progress
    identity: dict[str, Any]
    is_other: bool = False
    """It belongs to another run, which continues in this output folder."""


def find_stored_run(folder: CheckpointFolder, settings: TrainingSettings) -> StoredRun | None:
    """The newest intact checkpoint of the output folder or, in a new one, of the run that is continued there; None without either.

    Raises:
        ConfigError: there is one and ``resume`` is ``fresh``, or there is none and it is ``require``.
        CheckpointError: there are checkpoints, but every one is damaged.
    """
    newest = folder.newest(start_afresh=settings.resume == "fresh")
    if newest is not None:
        return StoredRun(newest, *CheckpointFolder.read_state(newest))
    if (other := settings.continued_run()) is not None:
        last = checkpoints.last_checkpoint(other)
        on_main(lambda: checkpoints.check_whole(last))
        return StoredRun(last, *CheckpointFolder.read_state(last), is_other=True)
    if settings.resume_mode() == "require":
        raise ConfigError(f"init=resume, but {folder.output_dir} holds no run of the name {folder.name}; is it the right output_dir?")
    return None


def stored_pool_size(folder: CheckpointFolder, settings: TrainingSettings) -> int:
    """Questions per pool of the run that this start would resume, the same on all ranks; 0 where there is none.

    Only a look: nothing is locked, checked or changed. What it says is compared again when the run is resumed.
    """
    return from_main(_pool_size_found(folder, settings) if current_ranks().is_main else 0)


def _pool_size_found(folder: CheckpointFolder, settings: TrainingSettings) -> int:
    found = [] if settings.resume == "fresh" else checkpoints.checkpoint_folders(folder.output_dir, folder.name)
    other = settings.continued_run()
    try:
        for checkpoint in [*found, *([] if other is None else [checkpoints.last_checkpoint(other)])]:
            state = read_json(checkpoint / checkpoints.STATE_FILE)
            return int(state["identity"]["fixed"]["train.global_batch_size"])
    except (DprError, KeyError, TypeError, ValueError):
        pass  # damaged: what is wrong with it is told when the run is resumed
    return 0


@dataclass(frozen=True, slots=True)
class StateOfRun:
    """What a checkpoint holds of a run beside its progress and identity."""

    model: BiEncoder
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    callbacks: Sequence[Callback]

    def write(self, folder: Path) -> None:
        """Writes all of it into a checkpoint that is being made.

        Raises:
            DivergedError: a weight is NaN or infinite.
        """
        refuse_not_finite(self.model.weights())
        self.model.write_to(folder)
        checkpoints.write_tensors(folder, checkpoints.OPTIMIZER_FILE, optimizer_tensors(self.model, self.optimizer))
        checkpoints.write_json_file(folder, SCALER_FILE, self.scaler.state_dict())
        states = {name: state for name, callback in self._named_callbacks() if (state := callback.state_dict())}
        checkpoints.write_json_file(folder, CALLBACKS_FILE, states)

    def read_model(self, folder: Path) -> None:
        """Puts the weights back."""
        self.model.load_weights(checkpoints.read_tensors(folder, checkpoints.MODEL_FILE), source=folder)

    def read_optimizer(self, folder: Path) -> None:
        """Puts the state of the optimizer and the loss scale back."""
        restore_optimizer(self.model, self.optimizer, checkpoints.read_tensors(folder, checkpoints.OPTIMIZER_FILE))
        self.scaler.load_state_dict(read_json(folder / SCALER_FILE))

    def read_callbacks(self, folder: Path) -> None:
        """Hands every callback its state; checkpoints of early versions have none."""
        states = read_json(folder / CALLBACKS_FILE) if (folder / CALLBACKS_FILE).is_file() else {}
        for name, callback in self._named_callbacks():
            if name in states:
                callback.load_state_dict(states[name])

    def _named_callbacks(self) -> Iterator[tuple[str, Callback]]:
        """Callbacks by name; the second of a name is ``Name#2``."""
        seen: dict[str, int] = {}
        for callback in self.callbacks:
            name = callback.state_key
            seen[name] = seen.get(name, 0) + 1
            yield (name if seen[name] == 1 else f"{name}#{seen[name]}"), callback
