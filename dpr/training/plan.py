"""The global batches and steps of a run as functions of its settings, and a log of them with warnings of
likely mistakes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.data.collator import Collator, teacher_scores
from dpr.data.iterators import Sampling
from dpr.data.loader import GlobalBatchDataset, cut_into_batches
from dpr.data.tensorizer import Tensorizer
from dpr.data.training_data import OpenedSets, SampleSource
from dpr.models.towers import Towers
from dpr.training.settings import TrainingSettings

logger = get_logger(__name__)

FEWEST_CANDIDATES = 8
SAMPLED_ROWS = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """The global batches and steps of a run. ``accumulation`` of them, of
    ``global_batch_size`` questions each, make an update."""

    dataset: GlobalBatchDataset
    global_batch_size: int
    accumulation: int
    steps_per_epoch: int
    total_steps: int
    """Steps that the schedule covers."""
    last_step: int
    """Step at which this start ends."""

    def num_texts(self) -> int:
        """Returns the approximate number of texts that all steps encode."""
        negatives, _ = negatives_per_question(self.dataset.sources, self.dataset.collator)
        return self.total_steps * self.accumulation * self.global_batch_size * (2 + negatives)

    def identity(self) -> dict[str, Any]:
        """Returns what the global batches depend on, by the names of settings (``RunIdentity.fixed``)."""
        dataset = self.dataset
        return {
            "train_datasets": [source.fingerprint for source in dataset.sources],
            "datasets": [
                options.metadata(source.name)
                for source, options in zip(dataset.sources, dataset.options, strict=True)
            ],
            "train_sampling_rates": dataset.iterator.identity(),
            "train.global_batch_size": self.global_batch_size,
        }

    def order_from(self, step: int) -> Iterator[tuple[int, int]]:
        """Yields the global batches of update ``step`` (counted from 0) and of all later ones."""
        for later in range(step, self.last_step):
            yield from self.batches_of(later)

    def batches_of(self, step: int) -> list[tuple[int, int]]:
        """Returns (epoch, number) of each global batch of update ``step`` (counted from 0), as the data set
        takes them."""
        epoch, in_epoch = divmod(step, self.steps_per_epoch)
        first = in_epoch * self.accumulation
        return [(epoch, first + number) for number in range(self.accumulation)]


def make_plan(
    sets: OpenedSets,
    tensorizer: Tensorizer,
    settings: TrainingSettings,
    *,
    global_batch_size: int,
    ranks: Ranks,
) -> Plan:
    """Returns the plan: the train sets cut into global batches of ``global_batch_size`` questions, as this rank sees
    them, and the resulting steps. If the only set (with ``train.sampling.mixed``, all sets together) has fewer
    rows, a global batch has all of them, rounded down to a multiple of the ranks.

    Raises:
        ConfigError: an epoch has fewer global batches than an update takes, or a set has fewer rows than
            there are ranks.
    """
    train = settings.train
    num_rows = sum(len(source) for source, _ in sets)
    is_one = len(sets) == 1 or train.sampling.mixed
    fitting = num_rows // ranks.world_size * ranks.world_size
    # With rates, rows may fill a global batch by occurring several times.
    if is_one and fitting and num_rows < global_batch_size and settings.train_sampling_rates is None:
        logger.info(
            "the training data fill only a batch of %d questions, fewer than the %d of the settings",
            fitting,
            global_batch_size,
        )
        global_batch_size = fitting
    seed = settings.seed
    collator = Collator(
        tensorizer,
        num_hard=train.hard_negatives,
        num_other=train.other_negatives,
        seed=seed,
        augmentation=train.augment,
    )
    dataset = cut_into_batches(
        sets,
        collator,
        global_batch_size=global_batch_size,
        ranks=ranks,
        seed=seed,
        sampling=Sampling(**vars(train.sampling) | {"rates": settings.train_sampling_rates}),
    )
    global_batches = dataset.iterator.batches_per_epoch
    accumulation = train.gradient_accumulation_steps
    if global_batches < accumulation:
        raise ConfigError(
            f"train.gradient_accumulation_steps={accumulation} is more than an epoch's {global_batches} global batches;"
            " lower it"
        )
    per_epoch = global_batches // accumulation  # a tail too short for an update is dropped
    total = min(train.num_train_epochs * per_epoch, train.max_steps or sys.maxsize)
    last = min(total, train.stop_at_epoch * per_epoch or sys.maxsize)
    return Plan(dataset, global_batch_size, accumulation, per_epoch, total, last)


def require_teacher_scores(sets: Sequence[SampleSource], settings: TrainingSettings) -> None:
    """Refuses an objective that learns from teacher scores if no passage of any set has one.

    Raises:
        ConfigError: names the settings.
    """
    loss = settings.loss
    if not loss.uses_teacher_scores:
        return
    for source in sets:
        # Rows spread over the set come first. All rows are read only if hardly any has a score.
        size = len(source)
        for row in (*range(0, size, max(1, size // SAMPLED_ROWS)), *range(size)):
            sample = source[row]
            if teacher_scores([*sample.positives, *sample.hard_negatives, *sample.other_negatives]):
                return
    weights = {"kl_weight": loss.kl_weight, "margin_mse_weight": loss.margin_mse_weight}
    keys = [f"loss.{name}={weight:g}" for name, weight in weights.items() if weight]
    raise ConfigError(
        f"{' and '.join(keys)} learn from a teacher's scores, but no passage of"
        f" {', '.join(source.name for source in sets)} has one; add teacher_score to the passages of the"
        " data, or leave these settings out"
    )


def log_summary(plan: Plan, settings: TrainingSettings, model: Towers, *, num_ranks: int) -> None:
    """Logs global batch, negatives and steps, and warns of settings with which the model would learn little
    or nothing."""
    dataset = plan.dataset
    if len(dataset.sources) > 1:
        sets = zip(dataset.sources, dataset.iterator.counts, dataset.iterator.passes(), strict=True)
        unit = "rows" if settings.train.sampling.mixed else "global batches"
        parts = [
            f"{source.name} {count:,} {unit} ({passes:.3g} pass{'' if passes == 1 else 'es'})"
            for source, count, passes in sets
        ]
        logger.info(
            "an epoch has %s global batches: %s", f"{dataset.iterator.batches_per_epoch:,}", ", ".join(parts)
        )
    of_question, has_hard = negatives_per_question(dataset.sources, dataset.collator)
    if has_hard and not dataset.collator.num_hard:
        logger.warning(
            "the training data have hard negatives, but train.hard_negatives=0 ignores them; set"
            " train.hard_negatives=1"
        )
    num_contexts = plan.global_batch_size * (1 + of_question)
    negatives = f"{num_contexts - 1:,} in-batch negatives per question, no hard negatives"
    if of_question:  # rows may have fewer
        negatives = f"up to {num_contexts - 1:,} negatives per question, including up to {of_question} from its own row"
    accumulation = f", {plan.accumulation} batches per step" if plan.accumulation > 1 else ""
    logger.info(
        "batch: %s questions x %s passages on %d rank%s (%s); steps: %s per epoch, %s in total%s",
        f"{plan.global_batch_size:,}",
        f"{num_contexts:,}",
        num_ranks,
        "" if num_ranks == 1 else "s",
        negatives,
        f"{plan.steps_per_epoch:,}",
        f"{plan.total_steps:,}",
        accumulation,
    )
    if (warmup := settings.train.warmup(plan.total_steps)) >= plan.total_steps:
        logger.warning(
            "train.warmup_steps=%d is not below the %d steps of the run, so the full learning rate is never"
            " reached",
            warmup,
            plan.total_steps,
        )
    if num_contexts < FEWEST_CANDIDATES:
        logger.warning(
            "a question has only %d negative(s), which teach little; raise train.batch_size (now %d questions"
            " in a global batch) or train.hard_negatives. With little memory, train.grad_cache_tokens allows global batches of"
            " any size",
            num_contexts - 1,
            plan.global_batch_size,
        )
    if model.settings.normalize and not model.options.learn_temperature:
        # Loss of a perfect model, with similarity 1 to the right context and 0 to all others.
        temperature = float(model.temperature)
        least = math.log1p((num_contexts - 1) * math.exp(-1 / temperature))
        if least > math.log(num_contexts) / 3:  # a third of the loss of chance
            logger.warning(
                "encoder.normalize=true with loss.temperature=%g: similarities lie between -1 and 1, so the"
                " loss stays near %.2f even for a good model; set loss.temperature=0.05, or"
                " loss.learn_temperature=true",
                temperature,
                least,
            )


def negatives_per_question(sources: Sequence[SampleSource], collator: Collator) -> tuple[int, bool]:
    """Returns the largest number of negatives of any row, and whether any row has hard negatives, among rows
    spread over each set."""
    most = 0
    has_hard = False
    for source in sources:
        for row in range(0, len(source), max(1, len(source) // SAMPLED_ROWS)):
            sample = source[row]
            hard = len(sample.hard_negatives)
            other = len(sample.other_negatives)
            has_hard |= hard > 0
            # others stand in for hard ones (Collator.select)
            most = max(most, min(collator.num_hard, hard or other) + min(collator.num_other, other))
    return most, has_hard
