"""A trainer for tests that takes settings by their names alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dpr.models.biencoder import BiEncoder
from dpr.training.assembly import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.callbacks.report_page import ReportPage
from dpr.training.command_settings import TrainCommand
from dpr.training.run import Run

DEFAULTS: dict[str, Any] = {
    "batch_size": 8,
    "num_train_epochs": 2,
    "log_batch_step": 1,
    "num_workers": 0,
    "warmup_steps": 0,
}


def make_trainer(
    model: BiEncoder,
    train_sets: Sequence[Any],
    dev_sets: Sequence[Any],
    output_dir: Path,
    *callbacks: Callback,
    report: bool = False,
    **options: Any,
) -> BiEncoderTrainer:
    """``options`` are arguments of the trainer, or settings by their names. The report page, which takes longer
    than a small training, is left out unless it is asked for."""
    trainer = BiEncoderTrainer(
        model, train_sets, dev_sets, output_dir=output_dir, callbacks=callbacks, **{**DEFAULTS, **options}
    )
    if not report:
        trainer.callbacks = [each for each in trainer.callbacks if not isinstance(each, ReportPage)]
    return trainer


def trainer_of(config: TrainCommand, model: BiEncoder, train_sets: Any, dev_sets: Any) -> BiEncoderTrainer:
    """The trainer that the settings of the command describe."""
    return BiEncoderTrainer(model, train_sets, dev_sets, output_dir=str(config.output_dir), settings=config)


class Calling(Callback):
    """Calls a function at one moment of a run, as ``on_log``."""

    def __init__(self, moment: str, function: Callable[..., Any]) -> None:
        setattr(self, moment, function)


class KilledAt(Callback):
    """Ends the process's part of a run without any of the ceremony of a stop."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_before_optimizer_step(self, run: Run) -> None:
        if run.progress.step + 1 == self.step:
            raise KeyboardInterrupt
