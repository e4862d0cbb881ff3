"""Whether validation works, before an epoch was spent on the way to it."""

from __future__ import annotations

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.training.callbacks.protocol import Callback
from dpr.training.run import Run
from dpr.training.validations.protocol import due_until, run_validations

logger = get_logger(__name__)


class SanityCheck(Callback):
    """Tries every validation that the run will come to, on the first few pools of every dev set; its values are discarded.

    Nothing of the run depends on it.
    """

    def __init__(self, num_pools: int = 2) -> None:
        self.num_pools = num_pools

    def on_train_begin(self, run: Run) -> None:
        if not run.validations or run.progress.step >= run.last_step or not self.num_pools:
            return
        coming = due_until(-(-run.last_step // run.steps_per_epoch), run.validations)
        metrics = run_validations(coming, run.model, num_pools=self.num_pools)
        name, _ = run.best_by(metrics)
        if name not in metrics and not run.progress.step:  # a run that has come further is not lost over it
            raise ConfigError(f"train.best_metric={name} is not a metric of any validation of this run; choose one of {', '.join(metrics)}")
        logger.info("validation tried on %d pools of each dev set", self.num_pools)
