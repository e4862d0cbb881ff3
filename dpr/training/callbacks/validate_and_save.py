"""When a run is validated and saved."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpr.training.callbacks.protocol import Callback
from dpr.training.settings import Periods

if TYPE_CHECKING:
    from dpr.training.trainer import BiEncoderTrainer


class ValidateAndSave(Callback):
    """Validates by epoch, by steps or after stated epochs; saves after each validation, at further steps and where a run is told to stop.

    The trainer keeps it behind all other callbacks, so that a checkpoint holds their state after the step it is of.
    """

    def __init__(self, periods: Periods) -> None:
        self.periods = periods

    def on_step_end(self, trainer: BiEncoderTrainer) -> None:
        if not trainer.is_epoch_over:
            self._act(trainer)

    def on_epoch_end(self, trainer: BiEncoderTrainer) -> None:
        self._act(trainer)

    def _act(self, trainer: BiEncoderTrainer) -> None:
        step = trainer.progress.step
        is_stopping = trainer.agrees_to_stop()
        validate = step == trainer.last_step or self.is_validation_due(step, trainer.steps_per_epoch)
        if validate:
            trainer.validate()
            trainer.agrees_to_stop()  # early stopping speaks up now
        if validate or is_stopping or (self.periods.save_every_steps and step % self.periods.save_every_steps == 0):
            trainer.save()

    def is_validation_due(self, step: int, steps_per_epoch: int) -> bool:
        """Whether a validation follows update ``step`` (counted from 1)."""
        if self.periods.eval_epochs:
            return step % steps_per_epoch == 0 and (step - 1) // steps_per_epoch in self.periods.eval_epochs
        if self.periods.eval_every_steps:
            return step % self.periods.eval_every_steps == 0
        if not self.periods.eval_per_epoch:
            return False
        in_epoch = (step - 1) % steps_per_epoch + 1
        return in_epoch == steps_per_epoch or in_epoch % math.ceil(steps_per_epoch / self.periods.eval_per_epoch) == 0
