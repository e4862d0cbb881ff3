"""Which rows make up which pool: pure functions of (seed, epoch, pool), with no state and no history.

The pool (all ranks' questions of one forward) is defined first; ranks then take consecutive slices of it, so the pools do not depend
on the number of ranks. A *lap* is one pass over the rows of a data set; a set's laps follow each other through the epochs.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dpr.core.seeding import generator_for

# Keys that separate the streams of random numbers.
ROWS, SCHEDULE, NEGATIVES, AUGMENT, DROPOUT, MIXTURE, LENGTHS, PAIRS, MASKS = range(9)

WINDOW_POOLS = 50
"""Pools whose rows are sorted by length together: enough that a pool's rows are similar, few enough that other rows meet in each lap."""


def permutation(num_rows: int, seed: int, lap: int, dataset: int) -> np.ndarray:
    """The order of a data set's rows in a lap."""
    return generator_for(ROWS, seed, lap, dataset, 0).permutation(num_rows)


class LapOrder:
    """The order of the rows in the current lap over a data set; only this one is kept, since it takes 8 bytes per row.

    With ``lengths`` (N,) of the rows a lap is whole pools of ``pool_size`` rows of similar length; without, all rows as shuffled.
    """

    def __init__(self, num_rows: int, seed: int, key: int, *, lengths: np.ndarray | None = None, pool_size: int = 1) -> None:
        self._num_rows, self._seed, self._key = num_rows, seed, key
        self._lengths, self._pool_size = lengths, pool_size
        self._lap = -1
        self._rows = np.empty(0, dtype=np.int64)

    def __call__(self, lap: int) -> np.ndarray:
        if self._lap != lap:
            self._rows, self._lap = self._of(lap), lap
        return self._rows

    def _of(self, lap: int) -> np.ndarray:
        rows = permutation(self._num_rows, self._seed, lap, self._key)
        if self._lengths is None:
            return rows
        rows = rows[: self._num_rows // self._pool_size * self._pool_size]
        return rows[group_by_length(self._lengths[rows], self._pool_size, generator_for(LENGTHS, self._seed, lap, self._key))]


def group_by_length(lengths: np.ndarray, pool_size: int, generator: np.random.Generator) -> np.ndarray:
    """Places of shuffled rows in a new order, in which pools hold rows of similar length and follow each other at random.

    1. Windows of ``WINDOW_POOLS`` pools, in the order given. 2. Inside a window the rows are sorted by ``lengths`` and cut into pools.
    3. All pools are shuffled, and the rows inside each, since ranks take consecutive slices. Their number is a multiple of ``pool_size``.
    """
    places = np.arange(len(lengths))
    by_length = np.lexsort((lengths, places // (WINDOW_POOLS * pool_size)))
    pools = generator.permuted(by_length.reshape(-1, pool_size), axis=1)
    return pools[generator.permutation(len(pools))].reshape(-1)


@lru_cache(maxsize=16)
def pool_schedule(pools: tuple[int, ...], seed: int, epoch: int) -> np.ndarray:
    """Which data set each pool of the epoch is drawn from: data set i occurs ``pools[i]`` times, in random order. Shape (sum(pools),)."""
    schedule = np.repeat(np.arange(len(pools)), pools)
    if len(pools) > 1:
        generator_for(SCHEDULE, seed, epoch).shuffle(schedule)
    schedule.flags.writeable = False
    return schedule


def rank_slice(num_items: int, rank: int, world_size: int) -> slice:
    """The consecutive part of ``num_items`` that belongs to a rank; parts differ in size by at most one and cover everything once."""
    return slice(num_items * rank // world_size, num_items * (rank + 1) // world_size)
