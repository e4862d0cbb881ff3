"""Progress of a run, the run as callbacks see it, and the moments at which they are called (``Callback``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks
from dpr.losses.protocol import GlobalBatch, LossResult
from dpr.models.towers import Towers
from dpr.training.settings import TrainingSettings
from dpr.training.validations.protocol import Metrics, Validation


@dataclass
class RunProgress:
    """Progress of a run. The next batch, its negatives and its dropout are functions of the step number."""

    step: int = 0
    """Optimizer updates done."""
    best_metric: str | None = None
    best_value: float | None = None
    best_checkpoint: str | None = None
    last_metrics: Metrics = field(default_factory=dict)
    """Metrics of the last validation."""
    start_metrics: Metrics = field(default_factory=dict)
    """Metrics of step 0, if they were measured, and the baselines measured with them."""
    unlogged: list[float] = field(default_factory=list)
    """Sums of the training metrics since the last log line, in a checkpoint between two log lines."""
    skipped: int = 0
    """Number of skipped updates, in a checkpoint."""

    def summary(self) -> dict[str, Any]:
        """Returns the content of ``metrics.json``: the metrics of the last validation, and the best."""
        return {"step": self.step, **self.last_metrics, **self.best()}

    def best(self) -> dict[str, Any]:
        """Returns the fields of the best checkpoint."""
        return {
            "best_metric": self.best_metric,
            "best_value": self.best_value,
            "best_checkpoint": self.best_checkpoint,
        }

    def forget_best(self) -> None:
        """Forgets the best checkpoint, so that it is chosen again."""
        self.best_metric = self.best_value = self.best_checkpoint = None

    def is_improved_by(self, metric: str, value: float, *, highest: bool = False) -> bool:
        """Returns whether ``value`` is the best so far: the lowest, or the highest. Another metric than
        before starts over."""
        if self.best_metric != metric or self.best_value is None or math.isnan(self.best_value):
            return True
        return value > self.best_value if highest else value < self.best_value


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The checkpoint that a run resumes from."""

    folder: Path
    progress: RunProgress
    identity: dict[str, Any]


class Run(Protocol):
    """A training run as callbacks see it. ``Trainer`` is the class that trains.

    It promises that all ranks are at the same moment of the same step. ``progress`` counts the updates that
    are done. ``results``, ``grad_norm`` and ``learning_rate`` are those of the last update. A callback may
    read all of it and change the model's weights or gradients; it changes everything else through the
    methods. A method that all ranks must call, at the same point, says so.
    """

    model: Towers
    ranks: Ranks
    device: torch.device
    settings: TrainingSettings
    config: dict[str, Any]
    """The configuration that checkpoints store for information."""
    output_dir: Path
    progress: RunProgress
    epoch: int
    """The current epoch, from its ``on_epoch_begin`` to the next."""
    steps_per_epoch: int
    total_steps: int
    """Steps that the schedule covers."""
    last_step: int
    """Step at which this start ends: ``total_steps``, or earlier with ``train.stop_at_epoch``."""
    validations: list[Validation]
    results: list[LossResult]
    """Results of the last update's micro-batches on this rank."""
    learning_rate: float
    grad_norm: Tensor
    """Norm () of the last update's gradient before clipping, on the device. Reading it waits for the
    device."""

    def num_texts(self) -> int:
        """Returns the approximate number of texts that all steps encode."""
        ...

    def take_metrics(self, *, matrix_speed: float = 0.0) -> Metrics:
        """Returns the training metrics of all ranks since the last call. All ranks call it together. ``matrix_speed``
        is as in ``TrainingMetrics.take``."""
        ...

    def best_by(self, metrics: Metrics) -> tuple[str, bool]:
        """Returns the metric by which the best checkpoint is chosen, and whether higher values are better."""
        ...

    def validate(self) -> Metrics:
        """Runs the validations that are due in this epoch, then chooses the best checkpoint. Returns their
        metrics, {} if none is due. All ranks call it together."""
        ...

    def save(self) -> Path | None:
        """Writes a checkpoint. Returns its folder, or None if it could not be written. All ranks call it
        together."""
        ...

    def request_stop(self, reason: str) -> None:
        """Ends the run after the current update, with a checkpoint. The request of one rank is enough: all
        stop at the same step."""
        ...

    def emit(self, moment: str, *arguments: Any) -> None:
        """Calls one moment of every callback, in order."""
        ...


class Callback:
    """Base class of callbacks, whose methods do nothing. Override the moments that you need.

    Callbacks run in order, on every rank. Work for one process only must check ``run.ranks.is_main``. A
    decision that may differ between ranks goes through ``run.request_stop``, on which the ranks agree.
    """

    @property
    def state_key(self) -> str:
        """Returns the name of its state in a checkpoint."""
        return type(self).__name__

    def on_train_begin(self, run: Run) -> None:
        """Runs before the first update, and after resuming."""

    def on_epoch_begin(self, run: Run) -> None:
        """Runs before the first update that this process makes in an epoch. After resuming, that may be in
        the middle of it."""

    def on_global_batch(
        self, run: Run, questions: Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch
    ) -> None:
        """Runs after the loss of each micro-batch of the coming step, with the arguments of ``Loss``, without
        gradient. Keep copies only; reading a value makes the host wait for the device."""

    def needs_global_batch(self, run: Run) -> bool:
        """Returns whether ``on_global_batch`` reads vectors of the coming micro-batch. If neither it nor the loss
        does, passages are not encoded."""
        return getattr(self.on_global_batch, "__func__", None) is not Callback.on_global_batch

    def on_before_optimizer_step(self, run: Run) -> None:
        """Runs when the gradients of the whole update are complete, unscaled and clipped."""

    def on_after_optimizer_step(self, run: Run) -> None:
        """Runs when the parameters have changed and the gradients are still there."""

    def on_step_end(self, run: Run) -> None:
        """Runs after every update; ``run.progress.step`` updates are done."""

    def on_epoch_end(self, run: Run) -> None:
        """Runs after the last update of an epoch and its ``on_step_end``, before the validation and the
        checkpoint that are due then."""

    def on_log(self, run: Run, metrics: Metrics) -> None:
        """Receives the training metrics of all ranks since the last time. Metrics added here reach the
        callbacks that follow."""

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        """Receives the metrics of a validation, the same on all ranks."""

    def on_save(self, run: Run, folder: Path) -> None:
        """Runs after a checkpoint was written."""

    def on_train_end(self, run: Run) -> None:
        """Runs after the last update, validation and checkpoint."""

    def on_exception(self, run: Run, error: BaseException) -> None:
        """Runs when training ends with an error or an interruption, which is raised again afterwards. Other
        ranks may be gone already."""

    def content(self) -> Mapping[str, Any]:
        """Returns what the batches or the objective depend on besides settings and train sets, as JSON, for
        example the content of a file. A run can only be resumed with the same content."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that a resumed run needs, as JSON. It is stored in every checkpoint (by rank 0),
        after all other moments of its step."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by ``state_dict``; runs before ``on_train_begin``."""
