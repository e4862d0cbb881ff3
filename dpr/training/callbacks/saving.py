"""Validations and checkpoints of a run, and the weights of its best checkpoint."""

from __future__ import annotations

import math

from dpr.core.logs import get_logger
from dpr.formats import checkpoints
from dpr.training.run import Callback, Run
from dpr.training.settings import Periods

logger = get_logger(__name__)


class ValidateAndSave(Callback):
    """Callback that validates by epoch or by steps, and saves after each validation and at further steps.

    It comes after all other callbacks, so a checkpoint holds their state after its step.
    """

    def __init__(self, periods: Periods) -> None:
        self.periods = periods

    def on_train_begin(self, run: Run) -> None:
        if not run.progress.step and self.periods.keep == "better":
            run.save()

    def on_step_end(self, run: Run) -> None:
        if run.progress.step % run.steps_per_epoch:  # otherwise on_epoch_end follows
            self._validate_and_save(run)

    def on_epoch_end(self, run: Run) -> None:
        self._validate_and_save(run)

    def _validate_and_save(self, run: Run) -> None:
        validates, saves = self.due_at(run.progress.step, run.last_step, run.steps_per_epoch)
        if validates:
            run.validate()
        if saves:
            run.save()

    def due_at(self, step: int, last_step: int, steps_per_epoch: int) -> tuple[bool, bool]:
        """Returns whether a validation and a checkpoint follow update ``step`` (counted from 1)."""
        periods = self.periods
        in_epoch = (step - 1) % steps_per_epoch + 1
        validates = step == last_step
        if periods.eval_every_steps:
            validates |= step % periods.eval_every_steps == 0
        elif periods.eval_per_epoch:
            every = math.ceil(steps_per_epoch / periods.eval_per_epoch)
            validates |= in_epoch == steps_per_epoch or in_epoch % every == 0
        every = periods.save_every_steps
        return validates, validates or (every > 0 and step % every == 0)


class LoadBest(Callback):
    """Callback that loads the weights of the best checkpoint into the model at the end of training."""

    def on_train_end(self, run: Run) -> None:
        if run.progress.best_checkpoint is not None:
            folder = run.output_dir / run.progress.best_checkpoint
            run.model.load_weights(checkpoints.read_tensors(folder, checkpoints.MODEL_FILE), source=folder)
            logger.info("the model is now that of %s", folder)
