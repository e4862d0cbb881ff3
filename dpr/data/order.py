"""Which rows make up which pool: pure functions of (seed, epoch, pool), with no state and no history.

The pool (all ranks' questions of one forward) is defined first; ranks then take consecutive slices of it, so the pools do not
depend on the number of ranks.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dpr.core.seeding import generator_for

# Keys that keep the streams of random numbers apart.
ROWS, SCHEDULE, NEGATIVES, AUGMENT, DROPOUT = range(5)


def permutation(num_rows: int, seed: int, epoch: int, dataset: int, lap: int = 0) -> np.ndarray:
    """The order of a data set's rows in an epoch; ``lap`` counts further passes within it (sampling rates above 1)."""
    return generator_for(ROWS, seed, epoch, dataset, lap).permutation(num_rows)


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
