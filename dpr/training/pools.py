"""Which pools a step has. Functions of the settings, so that a step can be looked at without a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError
from dpr.core.settings import part_of
from dpr.data.collator import Collator, SetOptions
from dpr.data.loader import PoolDataset, PoolOrder, SampleSource, cut_into_pools
from dpr.data.mixing import Sampling
from dpr.data.tensorizer import Tensorizer
from dpr.training.settings import BatchSettings, TrainingSettings, TrainSettings


def make_dataset(
    sets: Sequence[tuple[SampleSource, SetOptions]],
    tensorizer: Tensorizer,
    settings: TrainingSettings,
    *,
    pool_size: int,
    ranks: Ranks,
) -> PoolDataset:
    """The train sets cut into pools of ``pool_size`` questions, as this rank sees them."""
    train, seed = settings.train, settings.seed
    collator = Collator(tensorizer, num_hard=train.hard_negatives, num_other=train.other_negatives, seed=seed, augmentation=train.augment)
    return cut_into_pools(
        sets,
        collator,
        global_batch_size=pool_size,
        ranks=ranks,
        seed=seed,
        sampling=part_of(Sampling, train.sampling, rates=settings.train_sampling_rates),
        local_shards=settings.local_shards_dataloader,
    )


def steps_per_epoch(dataset: PoolDataset, batches: BatchSettings) -> int:
    """Updates that an epoch has; a tail too short for one is dropped.

    Raises:
        ConfigError: an epoch has fewer pools than an update takes.
    """
    pools, accumulation = dataset.iterator.pools_per_epoch, batches.gradient_accumulation_steps
    if batches.overfit_batches:
        pools = min(pools, batches.overfit_batches)
    if pools < accumulation:
        raise ConfigError(f"train.gradient_accumulation_steps={accumulation} is more than an epoch's {pools} pools; lower it")
    return pools // accumulation


@dataclass(frozen=True, slots=True)
class Plan:
    """The pools and steps of a run. ``accumulation`` pools of ``pool_size`` questions make an update."""

    dataset: PoolDataset
    pool_size: int
    accumulation: int
    steps_per_epoch: int
    total_steps: int
    """What the schedule is over."""
    last_step: int
    """Where this start ends."""

    def order_from(self, step: int, *, repeat_first: bool) -> PoolOrder:
        """The pools of update ``step`` (counted from 0) and of all after it, epoch by epoch."""
        return PoolOrder(
            epoch=step // self.steps_per_epoch,
            pool=(step % self.steps_per_epoch) * self.accumulation,
            num_epochs=-(-self.last_step // self.steps_per_epoch),
            pools_per_epoch=self.steps_per_epoch * self.accumulation,
            repeat_first=repeat_first,
        )


def make_plan(dataset: PoolDataset, train: TrainSettings, *, pool_size: int) -> Plan:
    """The plan of a run on ``dataset``.

    Raises:
        ConfigError: an epoch has fewer pools than an update takes.
    """
    per_epoch = steps_per_epoch(dataset, train)
    total = min(train.num_train_epochs * per_epoch, train.max_steps or sys.maxsize)
    last = min(total, train.stop_at_epoch * per_epoch or sys.maxsize)
    return Plan(dataset, pool_size, train.gradient_accumulation_steps, per_epoch, total, last)


def pools_of_step(step: int, per_epoch: int, batches: BatchSettings) -> tuple[int, list[tuple[int, int]]]:
    """The epoch of update ``step`` (counted from 0), and (epoch, pool) of each of its pools as the data set takes them."""
    epoch, within = divmod(step, per_epoch)
    first = within * batches.gradient_accumulation_steps
    drawn = 0 if batches.overfit_batches else epoch
    return epoch, [(drawn, first + number) for number in range(batches.gradient_accumulation_steps)]
