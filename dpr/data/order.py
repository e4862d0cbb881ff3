"""Which rows make up which pool: pure functions of (seed, epoch, pool), with no state and no history.

The pool (all ranks' questions of one forward) is defined first; ranks then take consecutive slices of it, so
the pools do not depend on the number of ranks. A *lap* is one pass over the rows of a data set; a set's laps
follow each other through the epochs.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dpr.core.seeding import generator_for

# Keys that separate the streams of random numbers.
ROWS, SCHEDULE, NEGATIVES, AUGMENT, DROPOUT, MIXTURE, LENGTHS, PAIRS = range(8)

WINDOW_ROWS = 1 << 16
"""Rows among which those nearest by words are looked for: of many more, each pool would take long to find."""

WORDS = np.dtype([("vector", np.int16, 512), ("positive", np.int64)])
"""What rows are grouped by words with. Vectors are whole numbers, no longer than 4,095: their products are
whole numbers below 2^24, which float32 adds up without rounding in whatever order. The positive is a number
that is equal where two rows have the same one."""


def permutation(num_rows: int, seed: int, lap: int, dataset: int) -> np.ndarray:
    """The order of a data set's rows in a lap."""
    return generator_for(ROWS, seed, lap, dataset, 0).permutation(num_rows)


class LapOrder:
    """The order of the rows in the current lap over a data set; only this one is kept, since it takes 8 bytes
    per row.

    With ``features`` (N,) of the rows a lap is whole pools of ``pool_size`` rows that are alike; without, all
    rows as shuffled.
    """

    def __init__(
        self, num_rows: int, seed: int, key: int, *, features: np.ndarray | None = None, pool_size: int = 1
    ) -> None:
        self._num_rows = num_rows
        self._seed = seed
        self._key = key
        self._features = features
        self._pool_size = pool_size
        self._lap = -1
        self._rows = np.empty(0, dtype=np.int64)

    def __call__(self, lap: int) -> np.ndarray:
        if self._lap != lap:
            self._rows = self._of(lap)
            self._lap = lap
        return self._rows

    def _of(self, lap: int) -> np.ndarray:
        rows = permutation(self._num_rows, self._seed, lap, self._key)
        if self._features is None:
            return rows
        rows = rows[: self._num_rows // self._pool_size * self._pool_size]
        return rows[
            group(self._features[rows], self._pool_size, generator_for(LENGTHS, self._seed, lap, self._key))
        ]


def group(features: np.ndarray, pool_size: int, generator: np.random.Generator) -> np.ndarray:
    """Places of shuffled rows in a new order, in which pools hold rows that are alike and follow each other
    at random.

    1. Windows of whole pools, in the order given. 2. Inside a window the rows are cut into pools, each a row
       and those nearest to it by words (``features`` (N,) of ``WORDS``). 3. All pools are shuffled, and the
       rows inside each, since ranks take consecutive slices. The number of rows is a multiple of
       ``pool_size``.
    """
    window = max(1, WINDOW_ROWS // pool_size) * pool_size
    starts = range(0, len(features), window)
    orders = [start + nearest_together(features[start : start + window], pool_size) for start in starts]
    places = np.concatenate(orders or [np.empty(0, dtype=np.int64)])
    pools = generator.permuted(places.reshape(-1, pool_size), axis=1)
    return pools[generator.permutation(len(pools))].reshape(-1)


def nearest_together(features: np.ndarray, pool_size: int) -> np.ndarray:
    """Places of rows (``WORDS``) pool by pool: the first that is left, and those nearest to it.

    Of rows with the same positive one is taken, unless no others are left: they would be no negatives of each
    other.
    """
    vectors = features["vector"].astype(np.float32)
    positives = features["positive"]
    left = np.arange(len(features))
    pools = list[np.ndarray]()
    while len(left):
        near = left[np.argsort(-(vectors @ vectors[left[0]])[left], kind="stable")]
        _, first = np.unique(positives[near], return_index=True)
        first.sort()
        chosen = np.concatenate([near[first], np.delete(near, first)])[:pool_size]
        pools.append(chosen)
        left = left[~np.isin(left, chosen)]
    return np.concatenate(pools)


@lru_cache(maxsize=16)
def pool_schedule(pools: tuple[int, ...], seed: int, epoch: int) -> np.ndarray:
    """Which data set each pool of the epoch is drawn from: data set i occurs ``pools[i]`` times, in random
    order. Shape (sum(pools),)."""
    schedule = np.repeat(np.arange(len(pools)), pools)
    if len(pools) > 1:
        generator_for(SCHEDULE, seed, epoch).shuffle(schedule)
    schedule.flags.writeable = False
    return schedule


def rank_slice(num_items: int, rank: int, world_size: int) -> slice:
    """The consecutive part of ``num_items`` that belongs to a rank; parts differ in size by at most one and
    cover everything once."""
    return slice(num_items * rank // world_size, num_items * (rank + 1) // world_size)
