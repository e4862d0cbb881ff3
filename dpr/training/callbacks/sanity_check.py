"""Whether validation works, before an epoch was spent on the way to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.training.callbacks.protocol import Callback
from dpr.training.validations.protocol import run_validations

if TYPE_CHECKING:
    from dpr.training.trainer import BiEncoderTrainer

logger = get_logger(__name__)


class SanityCheck(Callback):
    """Tries every validation that the run will come to, on the first few pools of every dev set; its values are discarded.

    Nothing of the run depends on it.
    """

    def __init__(self, num_pools: int = 2) -> None:
        self.num_pools = num_pools

    def on_train_begin(self, trainer: BiEncoderTrainer) -> None:
        if not trainer.validations or trainer.progress.step >= trainer.last_step or not self.num_pools:
            return
        metrics = run_validations(trainer.coming_validations(), trainer.model, num_pools=self.num_pools)
        name, _ = trainer.best_by(metrics)
        if name not in metrics and not trainer.progress.step:  # a run that has come further is not lost over it
            raise ConfigError(f"train.best_metric={name} is not a metric of any validation of this run; choose one of {', '.join(metrics)}")
        logger.info("validation tried on %d pools of each dev set", self.num_pools)
