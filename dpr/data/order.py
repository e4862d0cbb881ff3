"""Assignment of rows to global batches: pure functions of (seed, epoch, global batch),
with no state and no history.

The global batch (all ranks' questions of one forward) is defined first. Ranks then take consecutive slices of
it, so the global batches do not depend on the number of ranks. A set's passes over its rows follow each other through the epochs.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dpr.core.seeding import generator_for

# Keys that separate the streams of random numbers.
ROWS, SCHEDULE, NEGATIVES, AUGMENT, DROPOUT, MIXTURE, LENGTHS, PAIRS = range(8)

WINDOW_ROWS = 1 << 16
"""Number of rows among which the nearest by words are searched. With many more, building a global batch takes
too long."""

WORDS = np.dtype([("vector", np.int16, 512), ("positive", np.int64)])
"""Type of the features by which rows are grouped by words. Vectors are whole numbers, no longer than 4,095:
their products are whole numbers below 2^24, which float32 adds up without rounding in any order. The positive
is a number that is equal for rows with the same positive."""


def permutation(num_rows: int, seed: int, pass_number: int, dataset: int) -> np.ndarray:
    """Returns the order of a data set's rows in one pass over it."""
    return generator_for(ROWS, seed, pass_number, dataset, 0).permutation(num_rows)


class PassOrder:
    """The order of the rows in the current pass over a data set. Only this one is kept, since it takes 8
    bytes per row.

    With ``features`` (N,) of the rows, a pass is whole global batches of ``global_batch_size`` rows that are alike;
    without, it is all rows as shuffled.
    """

    def __init__(
        self,
        num_rows: int,
        seed: int,
        key: int,
        *,
        features: np.ndarray | None = None,
        global_batch_size: int = 1,
    ) -> None:
        self._num_rows = num_rows
        self._seed = seed
        self._key = key
        self._features = features
        self._global_batch_size = global_batch_size
        self._pass_number = -1
        self._rows = np.empty(0, dtype=np.int64)

    def __call__(self, pass_number: int) -> np.ndarray:
        if self._pass_number != pass_number:
            self._rows = self._of(pass_number)
            self._pass_number = pass_number
        return self._rows

    def _of(self, pass_number: int) -> np.ndarray:
        rows = permutation(self._num_rows, self._seed, pass_number, self._key)
        if self._features is None:
            return rows
        rows = rows[: self._num_rows // self._global_batch_size * self._global_batch_size]
        return rows[
            group(
                self._features[rows],
                self._global_batch_size,
                generator_for(LENGTHS, self._seed, pass_number, self._key),
            )
        ]


def group(features: np.ndarray, global_batch_size: int, generator: np.random.Generator) -> np.ndarray:
    """Returns places of shuffled rows in a new order: global batches hold rows that are alike, and follow
    each other at random.

    1. Windows hold whole global batches, in the order given. 2. Inside a window the rows are cut into global
    batches, each a row and those nearest to it by words (``features`` (N,) of ``WORDS``). 3. All global
    batches are shuffled, and the rows inside each, since ranks take consecutive slices.

    The number of rows is a multiple of ``global_batch_size``.
    """
    window = max(1, WINDOW_ROWS // global_batch_size) * global_batch_size
    starts = range(0, len(features), window)
    orders = [
        start + nearest_together(features[start : start + window], global_batch_size) for start in starts
    ]
    places = np.concatenate(orders or [np.empty(0, dtype=np.int64)])
    global_batches = generator.permuted(places.reshape(-1, global_batch_size), axis=1)
    return global_batches[generator.permutation(len(global_batches))].reshape(-1)


def nearest_together(features: np.ndarray, global_batch_size: int) -> np.ndarray:
    """Returns places of rows (``WORDS``), one global batch after the other: the first row that is left, and
    those nearest to it.

    Of the rows with the same positive, one is taken, unless no others are left. Rows with the same positive
    cannot be negatives of each other.
    """
    vectors = features["vector"].astype(np.float32)
    positives = features["positive"]
    left = np.arange(len(features))
    global_batches = list[np.ndarray]()
    while len(left):
        near = left[np.argsort(-(vectors @ vectors[left[0]])[left], kind="stable")]
        _, first = np.unique(positives[near], return_index=True)
        first.sort()
        chosen = np.concatenate([near[first], np.delete(near, first)])[:global_batch_size]
        global_batches.append(chosen)
        left = left[~np.isin(left, chosen)]
    return np.concatenate(global_batches)


@lru_cache(maxsize=16)
def batch_schedule(global_batches: tuple[int, ...], seed: int, epoch: int) -> np.ndarray:
    """Returns the data set that each global batch of the epoch is drawn from: (sum(global batches),). Data set i
    occurs ``global_batches[i]`` times, in random order."""
    schedule = np.repeat(np.arange(len(global_batches)), global_batches)
    if len(global_batches) > 1:
        generator_for(SCHEDULE, seed, epoch).shuffle(schedule)
    schedule.flags.writeable = False
    return schedule


def rank_slice(num_items: int, rank: int, world_size: int) -> slice:
    """Returns the consecutive part of ``num_items`` that belongs to a rank. Parts differ in size by at most
    one and cover everything once."""
    return slice(num_items * rank // world_size, num_items * (rank + 1) // world_size)
