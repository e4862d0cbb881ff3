"""Iterators over pools. Each is a function from (epoch, pool) to row numbers; the only state a run has is how many pools it has done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.data.order import permutation, pool_schedule, rank_slice

logger = get_logger(__name__)


class PoolRows(NamedTuple):
    """This rank's share of one pool: the data set's number and its row numbers, (B,)."""

    epoch: int
    dataset: int
    rows: np.ndarray


class DataIterator(Protocol):
    """A data set cut into pools."""

    num_pools: int

    def rows(self, epoch: int, pool: int) -> np.ndarray:
        """This rank's row numbers of a pool. ``pool`` may exceed ``num_pools``: the next pass over the data then begins, in a new order."""
        ...


class _Order:
    """The order of the rows in the current pass over a data set; only this one is kept, since it has 8 bytes per row."""

    def __init__(self, num_rows: int, seed: int, key: int) -> None:
        self._num_rows, self._seed, self._key = num_rows, seed, key
        self._pass: tuple[int, int] | None = None
        self._rows = np.empty(0, dtype=np.int64)

    def __call__(self, epoch: int, lap: int) -> np.ndarray:
        if self._pass != (epoch, lap):
            self._rows, self._pass = permutation(self._num_rows, self._seed, epoch, self._key, lap), (epoch, lap)
        return self._rows


class ShardedDataIterator:
    """Shuffles the whole data set anew each epoch; each rank takes its slice of every pool.

    The pools are the same for any number of ranks that divides ``global_batch_size``. The rows left over when the data set does not divide
    into pools are other ones in each epoch. Replaces DPR's class of the same name, where shards wrapped around.
    """

    def __init__(
        self,
        num_rows: int,
        *,
        global_batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        dataset: int = 0,
    ) -> None:
        if global_batch_size % world_size:
            raise ConfigError(
                f"train.global_batch_size={global_batch_size} cannot be divided evenly among {world_size} processes; "
                "start another number of processes or change train.global_batch_size"
            )
        self.num_rows, self.global_batch_size = num_rows, global_batch_size
        self.num_pools = num_rows // global_batch_size
        self._order = _Order(num_rows, seed, dataset)
        self._slice = rank_slice(global_batch_size, rank, world_size)

    def rows(self, epoch: int, pool: int) -> np.ndarray:
        lap, pool = divmod(pool, self.num_pools)
        start = pool * self.global_batch_size
        return self._order(epoch, lap)[start : start + self.global_batch_size][self._slice]


class LocalShardedDataIterator:
    """Each rank shuffles inside its own contiguous part of the data set, so that it touches only that part of the files.

    The order depends on the number of ranks. All ranks do as many pools as the smallest part allows.
    """

    def __init__(self, num_rows: int, *, global_batch_size: int, seed: int, rank: int = 0, world_size: int = 1, dataset: int = 0) -> None:
        if global_batch_size % world_size:
            raise ConfigError(
                f"train.global_batch_size={global_batch_size} cannot be divided evenly among {world_size} processes; "
                "start another number of processes or change train.global_batch_size"
            )
        self._batch_size = global_batch_size // world_size
        part = rank_slice(num_rows, rank, world_size)
        self._start, self._part_rows = part.start, part.stop - part.start
        self.num_pools = (num_rows // world_size) // self._batch_size
        # Ranks with parts of equal size would otherwise shuffle alike; harmless, but the key is free.
        self._order = _Order(self._part_rows, seed, dataset * 1_000_003 + rank)

    def rows(self, epoch: int, pool: int) -> np.ndarray:
        lap, pool = divmod(pool, self.num_pools)
        return self._start + self._order(epoch, lap)[pool * self._batch_size : (pool + 1) * self._batch_size]


class MultiSetDataIterator:
    """Mixes data sets: every pool comes from one set; set i gives int(pools_i * rate_i) pools an epoch, in an order all ranks share."""

    def __init__(
        self, iterators: Sequence[DataIterator], *, seed: int, sampling_rates: Sequence[float] | None = None, names: Sequence[str] = ()
    ) -> None:
        names = names or [f"data set {number}" for number in range(len(iterators))]
        rates = [1.0] * len(iterators) if sampling_rates is None else list(sampling_rates)
        if len(rates) != len(iterators):
            raise ConfigError(f"train_sampling_rates has {len(rates)} values for {len(iterators)} train_datasets; give one for each")
        for iterator, rate, name in zip(iterators, rates, names, strict=True):
            if rate < 0:
                raise ConfigError(f"train_sampling_rates={rates} has a negative value; rates are factors of at least 0")
            if iterator.num_pools == 0 and rate > 0:
                raise ConfigError(f"{name} has too few rows for a single pool; lower train.batch_size or the number of processes")
            if rate > 0 and int(iterator.num_pools * rate) == 0:
                logger.warning(
                    "train_sampling_rates: %s takes no part, since %s x %d pools is less than one", name, rate, iterator.num_pools
                )
        self._iterators, self._seed = list(iterators), seed
        self.pools_of_set = tuple(int(iterator.num_pools * rate) for iterator, rate in zip(iterators, rates, strict=True))
        self.pools_per_epoch = sum(self.pools_of_set)
        if self.pools_per_epoch == 0:
            raise ConfigError("no data set contributes a pool; raise train_sampling_rates or lower train.batch_size")

    def pool(self, epoch: int, index: int) -> PoolRows:
        """Pool ``index`` of an epoch."""
        schedule = pool_schedule(self.pools_of_set, self._seed, epoch)
        dataset = int(schedule[index])
        number = int(np.count_nonzero(schedule[:index] == dataset)) if len(self._iterators) > 1 else index
        return PoolRows(epoch, dataset, self._iterators[dataset].rows(epoch, number))

    def iterate(self, epoch: int, start: int = 0) -> Iterator[PoolRows]:
        """The pools of an epoch from ``start`` on."""
        for index in range(start, self.pools_per_epoch):
            yield self.pool(epoch, index)
