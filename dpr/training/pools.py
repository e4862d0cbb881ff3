"""Which pools a step has. Functions of the settings, so that a step can be looked at without a run."""

from __future__ import annotations

from collections.abc import Sequence

from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError
from dpr.data.collator import Collator, SetOptions
from dpr.data.loader import PoolDataset, SampleSource, cut_into_pools
from dpr.data.tensorizer import Tensorizer
from dpr.training.settings import BatchSettings


def make_dataset(
    sets: Sequence[tuple[SampleSource, SetOptions]],
    tensorizer: Tensorizer,
    batches: BatchSettings,
    *,
    pool_size: int,
    ranks: Ranks,
    seed: int,
) -> PoolDataset:
    """The train sets cut into pools of ``pool_size`` questions, as this rank sees them."""
    collator = Collator(
        tensorizer, num_hard=batches.hard_negatives, num_other=batches.other_negatives, seed=seed, augmentation=batches.augmentation
    )
    return cut_into_pools(
        sets,
        collator,
        global_batch_size=pool_size,
        ranks=ranks,
        seed=seed,
        sampling=batches.sampling,
        local_shards=batches.local_shards,
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


def pools_of_step(step: int, per_epoch: int, batches: BatchSettings) -> tuple[int, list[tuple[int, int]]]:
    """The epoch of update ``step`` (counted from 0), and (epoch, pool) of each of its pools as the data set takes them."""
    epoch, within = divmod(step, per_epoch)
    first = within * batches.gradient_accumulation_steps
    drawn = 0 if batches.overfit_batches else epoch
    return epoch, [(drawn, first + number) for number in range(batches.gradient_accumulation_steps)]
