"""What a run is about to do, and what about it is likely a mistake, before the first step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpr.core.logs import get_logger
from dpr.training.callbacks.protocol import Callback

if TYPE_CHECKING:
    from dpr.training.trainer import BiEncoderTrainer

logger = get_logger(__name__)

FEWEST_CANDIDATES = 8


class RunSummary(Callback):
    """Logs pools, negatives and steps; warns of settings with which the model would learn little or nothing."""

    def on_train_begin(self, trainer: BiEncoderTrainer) -> None:
        dataset = trainer.dataset
        if len(dataset.sources) > 1:
            laps = zip(dataset.sources, dataset.iterator.counts, dataset.iterator.laps(), strict=True)
            unit = "rows" if trainer.settings.train.sampling.mixed else "pools"
            parts = [f"{source.name} {count} {unit} ({lap:.3g} times over it)" for source, count, lap in laps]
            logger.info("an epoch has %d pools: %s", dataset.iterator.pools_per_epoch, ", ".join(parts))
        width = 1 + dataset.collator.num_hard + dataset.collator.num_other
        logger.info(
            "pool: %d questions (%d ranks), %d contexts, so %d negatives per question of which %d are its own; %d steps per epoch, "
            "%d in all, %d pools per step",
            trainer.pool_size,
            trainer.ranks.world_size,
            trainer.pool_size * width,
            trainer.pool_size * width - 1,
            width - 1,
            trainer.steps_per_epoch,
            trainer.total_steps,
            trainer.accumulation,
        )
        for warning in warnings(trainer, num_candidates=trainer.pool_size * width):
            logger.warning("%s", warning)


def warnings(trainer: BiEncoderTrainer, *, num_candidates: int) -> list[str]:
    """What is likely a mistake; ``num_candidates`` contexts are in a pool."""
    found = []
    if trainer.schedule.warmup_steps >= trainer.total_steps:
        found.append(
            f"train.warmup_steps={trainer.schedule.warmup_steps} is not below the {trainer.total_steps} steps of the run, so the full "
            "learning rate is never reached"
        )
    if num_candidates < FEWEST_CANDIDATES:
        found.append(
            f"a question has only {num_candidates - 1} negatives, which teach little; raise train.batch_size (now {trainer.pool_size} "
            "questions in a pool) or train.hard_negatives. With little memory, train.grad_cache_tokens allows pools of any size"
        )
    model = trainer.model
    if model.settings.normalize and not model.options.learn_temperature:
        # Of a perfect model: similarity 1 with the right context, 0 with each of the others.
        temperature = float(model.temperature)
        least = math.log1p((num_candidates - 1) * math.exp(-1 / temperature))
        if least > math.log(2):
            found.append(
                f"encoder.normalize=true with loss.temperature={temperature:g}: similarities lie between -1 and 1, so the loss "
                f"stays near {least:.2f} even for a good model; set loss.temperature=0.05, or loss.learn_temperature=true"
            )
    return found
