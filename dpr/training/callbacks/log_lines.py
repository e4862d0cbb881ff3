"""Log lines of a run, and its progress bar."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dpr.core.compute_settings import dtype_of
from dpr.core.logs import duration, get_logger, shows_bars
from dpr.training.run import Callback, Run
from dpr.training.settings import is_logged
from dpr.training.throughput import matrix_speed, peak_memory_gb
from dpr.training.validations.protocol import Metrics, each_once

logger = get_logger(__name__)

_OWN = ("train/", "optim/", "perf/", "pool/")
"""Heads of the toolkit's own metrics. A line shows the most important of them, and all that callbacks add."""


class LogEvery(Callback):
    """Callback that collects the training metrics of all ranks every ``every_steps`` steps and passes them to
    the ``on_log`` of every callback. 0 stands for never, None for the period of ``is_logged``."""

    def __init__(self, every_steps: int | None) -> None:
        self.every_steps = every_steps
        self._matrix_speed = 0.0
        self._start = (0.0, 0)

    def on_train_begin(self, run: Run) -> None:
        if run.progress.step < run.last_step:
            self._matrix_speed = matrix_speed(run.device, dtype_of(run.settings.train.precision))
        self._start = (time.perf_counter(), run.progress.step)

    def on_step_end(self, run: Run) -> None:
        step = run.progress.step
        if not is_logged(step, self.every_steps, run.last_step):
            return
        metrics = run.take_metrics(matrix_speed=self._matrix_speed)
        metrics["perf/mem_gb"] = peak_memory_gb(run.device)
        since, first = self._start
        metrics["perf/eta_s"] = (time.perf_counter() - since) / max(step - first, 1) * (run.last_step - step)
        run.emit("on_log", metrics)


class ProgressLine(Callback):
    """A progress bar on a terminal and in a notebook, log lines elsewhere. On rank 0."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def on_train_begin(self, run: Run) -> None:
        if run.ranks.is_main and shows_bars(sys.stderr):
            self._bar = tqdm(total=run.last_step, initial=run.progress.step, unit="step", dynamic_ncols=True)

    def on_step_end(self, run: Run) -> None:
        if self._bar is not None:
            self._bar.update()

    def on_log(self, run: Run, metrics: Metrics) -> None:
        accuracy = f"acc {metrics['train/in_batch_acc']:.3f}  " if "train/in_batch_acc" in metrics else ""
        added = "".join(
            f"  {name} {value:.4g}" for name, value in metrics.items() if not name.startswith(_OWN)
        )
        text = (
            f"loss {metrics['train/loss']:.4f}  {accuracy}lr {metrics['optim/lr']:.2e}  "
            f"grad {metrics['optim/grad_norm']:.2f}  {metrics['perf/questions_per_s']:,.0f} questions/s  "
            f"{metrics['perf/tokens_per_s']:,.0f} tokens/s  padding {metrics['perf/padding_share']:.0%}  "
            f"MFU {metrics['perf/mfu']:.1%}  memory {metrics['perf/mem_gb']:.1f} GiB{added}"
        )
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        elif run.ranks.is_main:
            logger.info(
                "epoch %d step %d/%d  %s  ETA %s",
                run.epoch,
                run.progress.step,
                run.last_step,
                text,
                duration(metrics["perf/eta_s"]),
                extra={"step": run.progress.step},
            )

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        logger.info(
            "step %d  %s",
            run.progress.step,
            "  ".join(f"{name} {value:.4f}" for name, value in each_once(metrics).items()),
        )

    def on_save(self, run: Run, folder: Path) -> None:
        logger.info("saved %s", folder)

    def on_train_end(self, run: Run) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def on_exception(self, run: Run, error: BaseException) -> None:
        self.on_train_end(run)
