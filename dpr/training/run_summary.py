"""What a run is about to do, and what about it is likely a mistake, before the first step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpr.core.logs import get_logger
from dpr.data.loader import SampleSource
from dpr.models.biencoder import BiEncoder
from dpr.training.pools import Plan
from dpr.training.settings import TrainingSettings

logger = get_logger(__name__)

FEWEST_CANDIDATES = 8
SAMPLED_ROWS = 256


def log_summary(plan: Plan, settings: TrainingSettings, model: BiEncoder, *, num_ranks: int) -> None:
    """Logs pools, negatives and steps; warns of settings with which the model would learn little or nothing."""
    dataset = plan.dataset
    if len(dataset.sources) > 1:
        laps = zip(dataset.sources, dataset.iterator.counts, dataset.iterator.laps(), strict=True)
        unit = "rows" if settings.train.sampling.mixed else "pools"
        parts = [f"{source.name} {count} {unit} ({lap:.3g} times over it)" for source, count, lap in laps]
        logger.info("an epoch has %d pools: %s", dataset.iterator.pools_per_epoch, ", ".join(parts))
    num_hard, num_other = dataset.collator.num_hard, dataset.collator.num_other
    own, has_hard = own_negatives(dataset.sources, num_hard=num_hard, num_other=num_other)
    if has_hard and not num_hard:
        logger.warning("the training data have hard negatives, but train.hard_negatives=0 ignores them; set train.hard_negatives=1")
    width = 1 + own
    num_contexts = plan.pool_size * width
    logger.info(
        "pool: %d questions (%d ranks), up to %d contexts, so up to %d negatives per question of which %d are its own; "
        "%d steps per epoch, %d in all, %d pools per step",
        *(plan.pool_size, num_ranks, num_contexts, num_contexts - 1, width - 1),
        *(plan.steps_per_epoch, plan.total_steps, plan.accumulation),
    )
    for warning in warnings(plan, settings, model, num_candidates=num_contexts):
        logger.warning("%s", warning)


def own_negatives(sources: Sequence[SampleSource], *, num_hard: int, num_other: int) -> tuple[int, bool]:
    """The most negatives that any row gives, and whether any row has hard ones, among rows spread over each set."""
    own, has_hard = 0, False
    for source in sources:
        for row in range(0, len(source), max(1, len(source) // SAMPLED_ROWS)):
            sample = source[row]
            hard, other = len(sample.hard_negatives), len(sample.other_negatives)
            has_hard = has_hard or hard > 0
            own = max(own, min(num_hard, hard or other) + min(num_other, other))  # others stand in for hard ones (select_passages)
    return own, has_hard


def warnings(plan: Plan, settings: TrainingSettings, model: BiEncoder, *, num_candidates: int) -> list[str]:
    """What is likely a mistake; ``num_candidates`` contexts are in a pool."""
    found = []
    if (warmup := settings.train.warmup(plan.total_steps)) >= plan.total_steps:
        found.append(
            f"train.warmup_steps={warmup} is not below the {plan.total_steps} steps of the run, so the full learning rate is never reached"
        )
    if num_candidates < FEWEST_CANDIDATES:
        found.append(
            f"a question has only {num_candidates - 1} negatives, which teach little; raise train.batch_size (now {plan.pool_size} "
            "questions in a pool) or train.hard_negatives. With little memory, train.grad_cache_tokens allows pools of any size"
        )
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
