"""Which pools a step has. Functions of the settings, so that a step can be looked at without a run."""

from __future__ import annotations

from collections.abc import Sequence

from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError
from dpr.core.settings import part_of
from dpr.data.collator import Collator, SetOptions
from dpr.data.loader import PoolDataset, SampleSource, cut_into_pools
from dpr.data.mixing import Sampling
from dpr.data.tensorizer import Tensorizer
from dpr.training.settings import BatchSettings, TrainingSettings


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


def pools_of_step(step: int, per_epoch: int, batches: BatchSettings) -> tuple[int, list[tuple[int, int]]]:
    """The epoch of update ``step`` (counted from 0), and (epoch, pool) of each of its pools as the data set takes them."""
    epoch, within = divmod(step, per_epoch)
    first = within * batches.gradient_accumulation_steps
    drawn = 0 if batches.overfit_batches else epoch
    return epoch, [(drawn, first + number) for number in range(batches.gradient_accumulation_steps)]
