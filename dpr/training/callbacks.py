"""What happens around the updates: logging, validating, saving. Each callback knows when it is due; users add their own.

A callback is any subclass of ``Callback``; it overrides the moments it cares for. Callbacks run in the order given, on every rank;
what only one process should do asks ``trainer.ranks.is_main``.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from dpr.core.errors import DivergedError
from dpr.core.logs import get_logger
from dpr.evaluation.report.write import write_report
from dpr.formats.durable import append_jsonl
from dpr.training.metrics import Metrics

if TYPE_CHECKING:
    from dpr.training.trainer import BiEncoderTrainer

logger = get_logger(__name__)


class Callback:
    """The moments of a run. All methods do nothing unless overridden."""

    def on_train_begin(self, trainer: BiEncoderTrainer) -> None:
        """Before the first update; after resuming."""

    def on_step_end(self, trainer: BiEncoderTrainer) -> None:
        """After every update; ``trainer.progress.step`` updates are done."""

    def on_log(self, trainer: BiEncoderTrainer, metrics: Metrics) -> None:
        """When training metrics are due."""

    def on_validate_end(self, trainer: BiEncoderTrainer, metrics: Metrics) -> None:
        """After a validation."""

    def on_save(self, trainer: BiEncoderTrainer, folder: Path) -> None:
        """After a checkpoint was written."""

    def on_train_end(self, trainer: BiEncoderTrainer) -> None:
        """After the last update, validation and checkpoint."""


class LogEvery(Callback):
    """Every so many steps, collects the training metrics of all ranks and hands them to every callback's ``on_log``."""

    def __init__(self, every_steps: int) -> None:
        self.every_steps = every_steps

    def on_step_end(self, trainer: BiEncoderTrainer) -> None:
        if trainer.progress.step % self.every_steps and trainer.progress.step != trainer.total_steps:
            return
        metrics = trainer.metrics.take()
        if not math.isfinite(metrics["train/loss"]):
            raise DivergedError(
                f"the loss is {metrics['train/loss']} at step {trainer.progress.step}; lower train.learning_rate, raise "
                "train.warmup_steps, or use train.precision=fp32. The last checkpoint is untouched"
            )
        metrics["optim/lr"] = trainer.learning_rate
        metrics["optim/grad_norm"] = float(trainer.grad_norm)
        if trainer.device.type == "cuda":
            metrics["perf/mem_gb"] = torch.cuda.max_memory_allocated(trainer.device) / 2**30
        trainer.emit("on_log", metrics)


class ProgressLine(Callback):
    """A progress bar on a terminal, plain lines elsewhere. On rank 0."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._start = (0.0, 0)

    def on_train_begin(self, trainer: BiEncoderTrainer) -> None:
        self._start = (time.perf_counter(), trainer.progress.step)
        if trainer.ranks.is_main and sys.stderr.isatty():
            self._bar = tqdm(total=trainer.total_steps, initial=trainer.progress.step, unit="step", dynamic_ncols=True)

    def on_step_end(self, trainer: BiEncoderTrainer) -> None:
        if self._bar is not None:
            self._bar.update()

    def on_log(self, trainer: BiEncoderTrainer, metrics: Metrics) -> None:
        text = (
            f"loss {metrics['train/loss']:.4f}  acc {metrics['train/in_batch_acc']:.3f}  lr {metrics['optim/lr']:.2e}  "
            f"grad {metrics['optim/grad_norm']:.2f}  {metrics['perf/questions_per_s']:.0f} questions/s  "
            f"{metrics['perf/tokens_per_s']:.0f} tokens/s  padding {metrics['perf/padding_share']:.0%}"
        )
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        elif trainer.ranks.is_main:
            elapsed, done = time.perf_counter() - self._start[0], trainer.progress.step - self._start[1]
            left = elapsed / max(done, 1) * (trainer.total_steps - trainer.progress.step)
            logger.info(
                "epoch %d step %d/%d  %s  left %s", trainer.epoch, trainer.progress.step, trainer.total_steps, text, _duration(left)
            )

    def on_validate_end(self, trainer: BiEncoderTrainer, metrics: Metrics) -> None:
        logger.info("step %d  %s", trainer.progress.step, "  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))

    def on_save(self, trainer: BiEncoderTrainer, folder: Path) -> None:
        logger.info("saved %s", folder)

    def on_train_end(self, trainer: BiEncoderTrainer) -> None:
        if self._bar is not None:
            self._bar.close()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02d}" if minutes >= 60 else f"{minutes}m{rest:02d}s"


class MetricsFile(Callback):
    """Appends every logged and validated figure to ``metrics.jsonl`` in the run's folder. On rank 0.

    A resumed run drops the lines of steps that will be done again, so that every step is there once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, trainer: BiEncoderTrainer) -> None:
        if not (trainer.ranks.is_main and self.path.exists()):
            return
        from dpr.formats.durable import durable_file

        lines = self.path.read_text(encoding="utf-8").splitlines()
        with durable_file(self.path) as file:
            for line in lines:
                if _step_of(line) <= trainer.progress.step:
                    file.write(line + "\n")

    def on_log(self, trainer: BiEncoderTrainer, metrics: Metrics) -> None:
        self._append(trainer, metrics)

    def on_validate_end(self, trainer: BiEncoderTrainer, metrics: Metrics) -> None:
        self._append(trainer, metrics)

    def _append(self, trainer: BiEncoderTrainer, metrics: Metrics) -> None:
        if trainer.ranks.is_main:
            append_jsonl(self.path, {"step": trainer.progress.step, "epoch": trainer.epoch, **metrics})


class ReportPage(Callback):
    """Keeps ``report.html`` in the run's folder up to date: at every checkpoint, so also at every validation, and at the end. On rank 0.

    A page that cannot be written is no reason to lose a run: it is a warning.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_save(self, trainer: BiEncoderTrainer, folder: Path) -> None:
        self._write(trainer)

    def on_train_end(self, trainer: BiEncoderTrainer) -> None:
        self._write(trainer)

    def _write(self, trainer: BiEncoderTrainer) -> None:
        if not trainer.ranks.is_main:
            return
        try:
            write_report(self.folder)
        except Exception as error:
            logger.warning("report.html is not written: %s", error)


def _step_of(line: str) -> float:
    """The step of a line; a line cut short by a kill counts as being in the future, so it is dropped."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


class ValidateAndSave(Callback):
    """Validates by epoch or by steps, saves after each validation, and at further steps if asked to."""

    def __init__(self, *, eval_per_epoch: int = 1, eval_every_steps: int = 0, save_every_steps: int = 0) -> None:
        self.eval_per_epoch, self.eval_every_steps, self.save_every_steps = eval_per_epoch, eval_every_steps, save_every_steps

    def on_step_end(self, trainer: BiEncoderTrainer) -> None:
        step, is_last = trainer.progress.step, trainer.progress.step == trainer.total_steps
        validate = is_last or self.is_validation_due(step, trainer.steps_per_epoch)
        if validate:
            trainer.validate()
        if validate or (self.save_every_steps and step % self.save_every_steps == 0):
            trainer.save()

    def is_validation_due(self, step: int, steps_per_epoch: int) -> bool:
        """Whether a validation follows update ``step`` (counted from 1)."""
        if self.eval_every_steps:
            return step % self.eval_every_steps == 0
        if not self.eval_per_epoch:
            return False
        in_epoch = (step - 1) % steps_per_epoch + 1
        return in_epoch == steps_per_epoch or in_epoch % math.ceil(steps_per_epoch / self.eval_per_epoch) == 0
