"""Order is a function: which rows a global batch holds depends on (seed, epoch, global batch) and nothing else."""

from __future__ import annotations

import pytest

from dpr.core.errors import ConfigError
from dpr.data.iterators import ShardedDataIterator
from dpr.data.order import permutation, rank_slice


def test_order_changes_with_seed_lap_and_data_set() -> None:
    orders = [permutation(50, *key).tolist() for key in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_order_is_the_one_recorded_here() -> None:
    """A change of this list would silently give resumed runs another order."""
    assert permutation(10, 12345, 0, 0).tolist() == RECORDED


RECORDED = [8, 7, 1, 2, 0, 4, 3, 9, 5, 6]


def test_rank_slices_cover_everything_once() -> None:
    for items in (0, 1, 3, 4, 13):
        covered = [index for rank in range(4) for index in range(items)[rank_slice(items, rank, 4)]]
        assert covered == list(range(items))


def test_a_global_batch_that_cannot_be_divided_among_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="global_batch_size=6"):
        ShardedDataIterator(100, global_batch_size=6, seed=0, rank=0, world_size=4)
