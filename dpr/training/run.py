"""How far a run is, and what callbacks see of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from dpr.core.distributed import Ranks
from dpr.core.logs import get_logger
from dpr.models.biencoder import BiEncoder
from dpr.training.metrics import Metrics
from dpr.training.plan import Plan
from dpr.training.settings import TrainingSettings
from dpr.training.step import StepResult
from dpr.training.validations.protocol import Validation, broken_guard, guard_limits

logger = get_logger(__name__)


@dataclass
class Progress:
    """How far a run is. One integer decides the next batch, its negatives and its dropout."""

    step: int = 0
    """Optimizer updates done."""
    schedule_start: int = 0
    """The step at which the learning-rate schedule began."""
    validations: int = 0
    """Validations done."""
    best_metric: str | None = None
    best_value: float | None = None
    best_checkpoint: str | None = None
    last_metrics: Metrics = field(default_factory=dict)
    """Metrics of the last validation."""
    start_metrics: Metrics = field(default_factory=dict)
    """Metrics of step 0, and what stands beside them, where they were measured."""
    unlogged: list[float] = field(default_factory=list)
    """Of a checkpoint between two log lines, the sums of the training metrics since the first of them."""
    skipped: int = 0
    """Of a checkpoint, how many updates were skipped."""

    def summary(self) -> dict[str, Any]:
        """What ``metrics.json`` holds: the metrics of the last validation, and the best."""
        return {"step": self.step, **self.last_metrics, **self.best()}

    def best(self) -> dict[str, Any]:
        """The fields of the best checkpoint."""
        return {
            "best_metric": self.best_metric,
            "best_value": self.best_value,
            "best_checkpoint": self.best_checkpoint,
        }

    def forget_best(self) -> None:
        """Lets the best be chosen anew."""
        self.best_metric = self.best_value = self.best_checkpoint = None

    def is_improved_by(self, metric: str, value: float, *, highest: bool = False) -> bool:
        """Whether ``value`` is the best so far: the lowest, or the highest; another metric than before starts
        over."""
        if self.best_metric != metric or self.best_value is None or math.isnan(self.best_value):
            return True
        return value > self.best_value if highest else value < self.best_value


class Run(Protocol):
    """A training run as callbacks see it. ``BiEncoderTrainer`` is the one that trains.

    It promises: all ranks are at the same moment of the same step; ``progress`` counts the updates that are
    done; ``results``, ``grad_norm`` and ``learning_rate`` are those of the last update. A callback may read
    all of it and change the model's weights or gradients; everything else it changes through the methods. A
    method that all ranks must call, at the same point, says so.
    """

    model: BiEncoder
    ranks: Ranks
    device: torch.device
    settings: TrainingSettings
    config: dict[str, Any]
    """The configuration as checkpoints keep it for people to read."""
    output_dir: Path
    progress: Progress
    epoch: int
    """The current epoch, from its ``on_epoch_begin`` to the next."""
    steps_per_epoch: int
    plan: Plan
    total_steps: int
    """What the schedule is over."""
    last_step: int
    """Where this start ends: ``total_steps``, or earlier with ``train.stop_at_epoch``."""
    validations: list[Validation]
    results: list[StepResult]
    """Those of the last update's micro-batches on this rank."""
    learning_rate: float
    grad_norm: Tensor
    """Norm () of the last update's gradient before clipping, on the device: reading it waits for the
    device."""

    def take_metrics(self, *, peak: float = 0.0) -> Metrics:
        """Training metrics of all ranks since the last call, which all ranks make together; ``peak`` as in
        ``TrainingMetrics.take``."""
        ...

    def best_by(self, metrics: Metrics) -> tuple[str, bool]:
        """The metric by which the best checkpoint is chosen, and whether more is better."""
        ...

    def validate(self) -> Metrics:
        """Runs the validations that are due in this epoch, then chooses the best; {} if none is due. All
        ranks call it together."""
        ...

    def save(self) -> Path | None:
        """Writes a checkpoint; returns its folder, or None when the disk refused it. All ranks call it
        together."""
        ...

    def request_stop(self, reason: str) -> None:
        """Ends the run after the current update, with a checkpoint. The request of one rank is enough: all
        stop at the same step."""
        ...

    def emit(self, moment: str, *arguments: Any) -> None:
        """Calls one moment of every callback, in order."""
        ...


def keeps_guards(run: Run, metrics: Metrics) -> bool:
    """Whether a checkpoint of these metrics may be the best; the log names a guard that it breaks, as one
    does that is not measured."""
    limits = guard_limits(run.validations, run.progress.start_metrics)
    if (name := broken_guard(limits, metrics)) is None:
        return True
    message = "step %d cannot be the best checkpoint: the guard of %s is %.4f, it has %.4f"
    logger.warning(message, run.progress.step, name, limits[name][0], metrics.get(name, math.nan))
    return False
