"""Training figures, when they are due."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from dpr.core.errors import DivergedError
from dpr.training.callbacks.protocol import Callback

if TYPE_CHECKING:
    from dpr.training.trainer import BiEncoderTrainer


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
