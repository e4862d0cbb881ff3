"""Training figures, when they are due."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dpr.core.precision import dtype_of
from dpr.training.callbacks.protocol import Callback
from dpr.training.throughput import matrix_peak, peak_memory_gb

if TYPE_CHECKING:
    from dpr.training.trainer import BiEncoderTrainer


class LogEvery(Callback):
    """Every so many steps (0: never), collects the training metrics of all ranks and hands them to every callback's ``on_log``."""

    def __init__(self, every_steps: int) -> None:
        self.every_steps = every_steps
        self._peak = 0.0
        self._start = (0.0, 0)

    def on_train_begin(self, trainer: BiEncoderTrainer) -> None:
        if trainer.progress.step < trainer.last_step:
            self._peak = matrix_peak(trainer.device, dtype_of(trainer.settings.train.precision))
        trainer.metrics.take()  # the time until now is none of the first line's
        self._start = (time.perf_counter(), trainer.progress.step)

    def on_step_end(self, trainer: BiEncoderTrainer) -> None:
        step = trainer.progress.step
        if not self.every_steps or (step % self.every_steps and step != trainer.last_step):
            return
        metrics = trainer.metrics.take(peak=self._peak)
        metrics["optim/lr"] = trainer.learning_rate
        metrics["optim/grad_norm"] = float(trainer.grad_norm)
        if trainer.step.scaler.is_enabled():
            metrics["optim/loss_scale"] = trainer.step.scaler.get_scale()  # it falls where steps are skipped
        metrics["perf/mem_gb"] = peak_memory_gb(trainer.device)
        since, first = self._start
        metrics["perf/eta_s"] = (time.perf_counter() - since) / max(step - first, 1) * (trainer.last_step - step)
        metrics["train/skipped_steps"] = float(trainer.guard.num_skipped)
        trainer.emit("on_log", metrics)
