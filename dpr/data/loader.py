"""Batches for a rank, made ahead of the model in worker processes, always in the order the iterators state."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks
from dpr.core.stopping import ignore_in_worker
from dpr.data.collator import Collator, SetOptions
from dpr.data.iterators import LocalShardedDataIterator, MultiSetDataIterator, PoolRows, ShardedDataIterator
from dpr.data.negatives import AnyPassage, AnySample


class SampleSource(Protocol):
    """A training or dev set whose rows are read when asked for."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> AnySample: ...

    def known_positives(self, row: int) -> tuple[AnyPassage, ...]:
        """Every passage known to answer the question of this row, its own positives included."""
        ...


class PoolDataset(Dataset[BiEncoderBatch]):
    """Maps (epoch, pool) to this rank's batch."""

    def __init__(
        self, sources: Sequence[SampleSource], options: Sequence[SetOptions], iterator: MultiSetDataIterator, collator: Collator
    ) -> None:
        self.sources, self.options, self.iterator, self.collator = list(sources), list(options), iterator, collator

    def __getitem__(self, key: tuple[int, int]) -> BiEncoderBatch:
        return self.collate(self.iterator.pool(*key))

    def collate(self, pool: PoolRows) -> BiEncoderBatch:
        """Reads and collates the rows of a pool."""
        source = self.sources[pool.dataset]
        rows = [int(row) for row in pool.rows]
        return self.collator(
            [source[row] for row in rows],
            rows,
            options=self.options[pool.dataset],
            known_positives=source.known_positives,
            epoch=pool.epoch,
            dataset=pool.dataset,
        )


def cut_into_pools(
    sets: Sequence[tuple[SampleSource, SetOptions]],
    collator: Collator,
    *,
    global_batch_size: int,
    ranks: Ranks,
    seed: int,
    sampling_rates: Sequence[float] | None = None,
    local_shards: bool = False,
) -> PoolDataset:
    """This rank's view of the pools of ``global_batch_size`` questions that the data sets give.

    Raises:
        ConfigError: the pool does not divide among the ranks, a set is smaller than a pool, rates and sets do not match.
    """
    kind = LocalShardedDataIterator if local_shards else ShardedDataIterator
    shared = {"global_batch_size": global_batch_size, "seed": seed, "rank": ranks.rank, "world_size": ranks.world_size}
    iterators = [kind(len(source), dataset=number, **shared) for number, (source, _) in enumerate(sets)]
    order = MultiSetDataIterator(iterators, seed=seed, sampling_rates=sampling_rates, names=[source.name for source, _ in sets])
    return PoolDataset([source for source, _ in sets], [options for _, options in sets], order, collator)


class PoolOrder(Sampler[tuple[int, int]]):
    """(epoch, pool) from a starting point on, ``pools_per_epoch`` to an epoch; with ``repeat_first`` every epoch is the first again."""

    def __init__(self, *, epoch: int, pool: int, num_epochs: int, pools_per_epoch: int, repeat_first: bool = False) -> None:
        self._epoch, self._pool, self._num_epochs, self._pools_per_epoch = epoch, pool, num_epochs, pools_per_epoch
        self._repeat_first = repeat_first

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for epoch in range(self._epoch, self._num_epochs):
            for pool in range(self._pool if epoch == self._epoch else 0, self._pools_per_epoch):
                yield (0 if self._repeat_first else epoch), pool


def start_worker(_: int) -> None:
    """What a worker process does first."""
    ignore_in_worker()
    # A worker is one of several processes that share the machine; more threads in each only get in the model's way.
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def pool_loader(
    dataset: PoolDataset, order: PoolOrder, *, num_workers: int = 1, prefetch_batches: int = 4, pin_memory: bool = False
) -> DataLoader[BiEncoderBatch]:
    """Batches in the given order; with workers they are made while the model computes."""
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=order,
        num_workers=num_workers,
        prefetch_factor=prefetch_batches if num_workers else None,
        pin_memory=pin_memory,
        worker_init_fn=start_worker if num_workers else None,
    )
