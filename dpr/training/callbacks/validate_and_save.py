"""When a run is validated and saved."""

from __future__ import annotations

import math

from dpr.training.callbacks.protocol import Callback
from dpr.training.run import Run
from dpr.training.settings import Periods


class ValidateAndSave(Callback):
    """Validates by epoch, by steps or after stated epochs; saves after each validation and at further steps.

    It stands behind all other callbacks, so that a checkpoint holds their state after the step it is of.
    """

    def __init__(self, periods: Periods) -> None:
        self.periods = periods

    def on_step_end(self, run: Run) -> None:
        if run.progress.step % run.steps_per_epoch:
            self._act(run)

    def on_epoch_end(self, run: Run) -> None:
        self._act(run)

    def _act(self, run: Run) -> None:
        step, every = run.progress.step, self.periods.save_every_steps
        validates = step == run.last_step or self.is_validation_due(step, run.steps_per_epoch)
        if validates:
            run.validate()
        if validates or (every and step % every == 0):
            run.save()

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
