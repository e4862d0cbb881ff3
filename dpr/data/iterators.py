"""Iterators over global batches, and the share of an epoch that each train set contributes. An
iterator is a function from (epoch, global batch) to row numbers; the only state of a run is the number of
global batches it has processed.

With N_i the rows of set i and Q the questions of a global batch, set i has the share p_i of an epoch:

    rates        p_i proportional to rate_i N_i       (no rates: 1)
    weights      p_i proportional to weight_i
    temperature  p_i proportional to N_i ^ (1/T)      (T = 1: in proportion to the rows, a large T: equal shares)

An epoch's P global batches are divided by the largest remainder: every set gets its share rounded down, and
the rest goes to the sets that were rounded down most. Counts are exact and the same in every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.seeding import generator_for
from dpr.data.order import LENGTHS, MIXTURE, PassOrder, batch_schedule, group, permutation, rank_slice
from dpr.data.settings import SamplingSettings

logger = get_logger(__name__)


@dataclass
class Sampling(SamplingSettings):
    """Composition of an epoch's global batches: the settings, ``rates``, which multiply the rows that each
    set gives, and the ``weights`` of the sets (``datasets.<name>.weight``)."""

    rates: list[float] | None = None
    weights: list[float] | None = None

    def __post_init__(self) -> None:
        self.check("train.sampling.")
        self.check_shares(self.rates)

    def batches_of_sets(
        self, num_rows: Sequence[int], num_batches: Sequence[int], names: Sequence[str]
    ) -> tuple[int, ...]:
        """Returns the number of global batches that each set contributes to an epoch if each comes from one
        set. ``num_batches`` are those of one pass over the set.

        Raises:
            ConfigError: the number of shares is wrong, a set with a share is smaller than a global batch, no
            set contributes a global batch.
        """
        shares = self._shares(num_rows)
        for share, global_batches, rows, name in zip(shares, num_batches, num_rows, names, strict=True):
            if share > 0 and global_batches == 0:
                raise ConfigError(
                    f"{name}: {rows:,} rows do not fill a single global batch, which is one batch per process; lower"
                    " train.batch_size or the number of processes, or mix it with larger sets by"
                    " train.sampling.mixed=true"
                )
        if self.weights is None and self.temperature is None:
            rates = self.rates or [1.0] * len(num_batches)
            counts = tuple(
                int(global_batches * rate) for global_batches, rate in zip(num_batches, rates, strict=True)
            )
        else:
            total = sum(
                global_batches for global_batches, share in zip(num_batches, shares, strict=True) if share > 0
            )
            counts = largest_remainder(total, shares)
        return _checked(counts, shares, names)

    def rows_of_sets(
        self, num_rows: Sequence[int], global_batch_size: int, names: Sequence[str]
    ) -> tuple[int, ...]:
        """Returns the number of rows that each set contributes to an epoch of mixed global batches; together
        they fill whole global batches.

        Raises:
            ConfigError: the number of shares is wrong, all rows together do not fill a global batch.
        """
        shares = self._shares(num_rows)
        rates = self.rates or [1.0] * len(num_rows)
        rows = sum(
            count * rate for count, rate, share in zip(num_rows, rates, shares, strict=True) if share > 0
        )
        return _checked(
            largest_remainder(int(rows) // global_batch_size * global_batch_size, shares), shares, names
        )

    def _shares(self, num_rows: Sequence[int]) -> np.ndarray:
        """Returns the shares of the sets, which sum to 1."""
        if self.rates is not None and len(self.rates) != len(num_rows):
            raise ConfigError(
                f"train_sampling_rates has {len(self.rates)} values for {len(num_rows)} train_datasets; give"
                " one for each"
            )
        rows = np.array(num_rows, dtype=np.float64)
        if self.weights is not None:
            shares = np.array(self.weights, dtype=np.float64)
        elif self.temperature is not None:
            shares = (rows / max(rows.max(), 1)) ** (1 / self.temperature)
        else:
            shares = rows * np.array(self.rates or [1.0] * len(rows))
        return shares / (shares.sum() or 1)


def largest_remainder(total: int, shares: np.ndarray) -> tuple[int, ...]:
    """Returns whole numbers in proportion to ``shares`` that sum to ``total``. Between equal remainders the
    first set gets more."""
    exact = total * shares
    counts = np.floor(exact).astype(np.int64)
    # Remainders to 9 digits: rounding errors must not decide between equal ones.
    order = np.argsort(-np.round(exact - counts, 9), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return tuple(counts.tolist())


def _checked(counts: tuple[int, ...], shares: np.ndarray, names: Sequence[str]) -> tuple[int, ...]:
    if sum(counts) == 0:
        raise ConfigError(
            "no data set contributes a global batch; raise train_sampling_rates or lower train.batch_size"
        )
    for count, share, name in zip(counts, shares, names, strict=True):
        if share > 0 and count == 0:
            logger.warning(
                "%s is left out, since its share of an epoch is less than one global batch; give it a larger weight",
                name,
            )
    return counts


class GlobalBatchRows(NamedTuple):
    """This rank's part of one global batch, row by row, (B,) each: data set, row number in it, and number of
    complete passes over the set before."""

    datasets: np.ndarray
    rows: np.ndarray
    passes: np.ndarray


def _share(global_batch_size: int, rank: int, world_size: int) -> slice:
    """Returns the slice of a rank's rows in every global batch."""
    if global_batch_size % world_size:
        raise ConfigError(
            f"train.global_batch_size={global_batch_size} cannot be divided evenly among {world_size}"
            " processes; change the number of processes or train.global_batch_size"
        )
    return rank_slice(global_batch_size, rank, world_size)


class ShardedDataIterator:
    """Shuffles the whole data set in each pass over it; each rank takes its slice of every global batch.

    The global batches are the same for any number of ranks that divides ``global_batch_size``. If the data
    set does not divide into global batches, other rows are left over in each pass. With ``features`` of the
    rows, global batches have rows that are alike. A pass has ``num_batches`` global batches. Replaces DPR's
    class of the same name, whose shards wrapped around.
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
        features: np.ndarray | None = None,
    ) -> None:
        self._slice = _share(global_batch_size, rank, world_size)
        self.num_rows = num_rows
        self.global_batch_size = global_batch_size
        self.num_batches = num_rows // global_batch_size
        self._order = PassOrder(
            num_rows, seed, dataset, features=features, global_batch_size=global_batch_size
        )

    def rows(self, global_batch: int) -> np.ndarray:
        """Returns this rank's row numbers of a global batch. From ``num_batches`` on, it belongs to the next
        pass, in another order."""
        pass_number, global_batch = divmod(global_batch, self.num_batches)
        start = global_batch * self.global_batch_size
        return self._order(pass_number)[start : start + self.global_batch_size][self._slice]


class MultiSetDataIterator:
    """Takes every global batch from one set. The sets' global batches follow each other in an order that all
    ranks share.

    Epoch e takes global batches e n_i to (e + 1) n_i of set i, which contributes n_i to an epoch. A set with
    more continues in the next epoch, so that every row is used; one with fewer starts another pass, in
    another order.
    """

    def __init__(
        self,
        iterators: Sequence[ShardedDataIterator],
        *,
        seed: int,
        sampling: Sampling | None = None,
        names: Sequence[str] = (),
    ) -> None:
        names = names or [f"data set {number}" for number in range(len(iterators))]
        self._iterators = list(iterators)
        self._seed = seed
        num_rows = [item.num_rows for item in iterators]
        self._num_batches = [item.num_batches for item in iterators]
        self.counts = (sampling or Sampling()).batches_of_sets(num_rows, self._num_batches, names)
        """Number of global batches that each set contributes to an epoch; for ``MixedDataIterator``, of
        rows."""
        self.batches_per_epoch = sum(self.counts)

    def global_batch(self, epoch: int, index: int) -> GlobalBatchRows:
        """Returns this rank's part of global batch ``index`` of an epoch."""
        schedule = batch_schedule(self.counts, self._seed, epoch)
        dataset = int(schedule[index])
        number = int(np.count_nonzero(schedule[:index] == dataset)) if len(self._iterators) > 1 else index
        number += epoch * self.counts[dataset]
        rows = self._iterators[dataset].rows(number)
        return GlobalBatchRows(
            np.full(len(rows), dataset), rows, np.full(len(rows), number // self._num_batches[dataset])
        )

    def identity(self) -> list[Any]:
        """Returns ``counts`` as a run's identity stores them."""
        # Unless an epoch is exactly one pass over a set, the size of the pass is part of the order too.
        return [
            count if count == global_batches else [count, global_batches]
            for count, global_batches in zip(self.counts, self._num_batches, strict=True)
        ]

    def passes(self) -> list[float]:
        """Returns the number of passes over each set in an epoch."""
        return [
            count / global_batches if global_batches else 0.0
            for count, global_batches in zip(self.counts, self._num_batches, strict=True)
        ]


class MixedDataIterator:
    """Draws every global batch from all sets together: the epoch's rows of all sets are shuffled as one and
    cut into global batches.

    Epoch e takes rows e c_i to (e + 1) c_i of set i, which contributes c_i to an epoch, in the order of the
    passes over it. If fewer rows of a set than a global batch has remain after an epoch, they are left out of
    the pass, other ones in each; so no row occurs twice in an epoch.
    """

    def __init__(
        self,
        num_rows: Sequence[int],
        *,
        global_batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        sampling: Sampling | None = None,
        names: Sequence[str] = (),
        features: Sequence[np.ndarray] | None = None,
    ) -> None:
        names = names or [f"data set {number}" for number in range(len(num_rows))]
        self._slice = _share(global_batch_size, rank, world_size)
        self._global_batch_size = global_batch_size
        self._seed = seed
        self._num_rows = list(num_rows)
        self._features = features
        self.counts = (sampling or Sampling()).rows_of_sets(num_rows, global_batch_size, names)
        self.batches_per_epoch = sum(self.counts) // global_batch_size
        pairs = zip(self.counts, num_rows, strict=True)
        self._pass_rows = [count if 0 <= rows - count < global_batch_size else rows for count, rows in pairs]
        self._epoch, self._rows = -1, GlobalBatchRows(*(np.empty(0, dtype=np.int64) for _ in range(3)))

    def global_batch(self, epoch: int, index: int) -> GlobalBatchRows:
        if self._epoch != epoch:
            self._rows = self._rows_of(epoch)
            self._epoch = epoch
        start = index * self._global_batch_size
        return GlobalBatchRows(
            *(part[start : start + self._global_batch_size][self._slice] for part in self._rows)
        )

    def identity(self) -> list[Any]:
        return list(self.counts)

    def passes(self) -> list[float]:
        return [
            count / rows if rows else 0.0 for count, rows in zip(self.counts, self._pass_rows, strict=True)
        ]

    def _rows_of(self, epoch: int) -> GlobalBatchRows:
        """Returns all rows of an epoch in the order of its global batches. They are kept, 14 bytes a row."""
        sets = [self._rows_of_set(epoch, dataset) for dataset in range(len(self.counts))]
        rows, passes = (np.concatenate([part[column] for part in sets]) for column in range(2))
        datasets = np.repeat(np.arange(len(sets), dtype=np.uint16), self.counts)
        order = generator_for(MIXTURE, self._seed, epoch).permutation(len(rows))
        if self._features is not None:
            features = np.concatenate([self._features[number][part[0]] for number, part in enumerate(sets)])[
                order
            ]
            order = order[group(features, self._global_batch_size, generator_for(LENGTHS, self._seed, epoch))]
        return GlobalBatchRows(datasets[order], rows[order], passes[order])

    def _rows_of_set(self, epoch: int, dataset: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the row numbers of one set in the epoch, and the pass that each belongs to."""
        count = self.counts[dataset]
        if not count:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        passes, places = np.divmod(np.arange(epoch * count, (epoch + 1) * count), self._pass_rows[dataset])
        rows = [
            permutation(self._num_rows[dataset], self._seed, pass_number, dataset)[
                places[passes == pass_number]
            ]
            for pass_number in range(int(passes[0]), int(passes[-1]) + 1)
        ]
        return np.concatenate(rows), passes.astype(np.int32)


GlobalBatchIterator = MultiSetDataIterator | MixedDataIterator
"""Iterators that cut all train sets, together, into global batches."""
