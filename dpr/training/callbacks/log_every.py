"""Training figures, when they are due."""

from __future__ import annotations

import time

from dpr.core.precision import dtype_of
from dpr.training.callbacks.protocol import Callback
from dpr.training.run import Run
from dpr.training.throughput import matrix_peak, peak_memory_gb


class LogEvery(Callback):
    """Every so many steps (0: never), collects the training metrics of all ranks and hands them to every callback's ``on_log``."""

    def __init__(self, every_steps: int) -> None:
        self.every_steps = every_steps
        self._peak = 0.0
        self._start = (0.0, 0)

    def on_train_begin(self, run: Run) -> None:
        if run.progress.step < run.last_step:
            self._peak = matrix_peak(run.device, dtype_of(run.settings.train.precision))
        run.take_metrics()  # the time until now is none of the first line's
        self._start = (time.perf_counter(), run.progress.step)

    def on_step_end(self, run: Run) -> None:
        step = run.progress.step
        if not self.every_steps or (step % self.every_steps and step != run.last_step):
            return
        metrics = run.take_metrics(peak=self._peak)
        metrics["perf/mem_gb"] = peak_memory_gb(run.device)
        since, first = self._start
        metrics["perf/eta_s"] = (time.perf_counter() - since) / max(step - first, 1) * (run.last_step - step)
        run.emit("on_log", metrics)
