"""Order is a function: which rows a pool holds depends on (seed, epoch, pool) and nothing else."""

from __future__ import annotations

import functools
import operator

import pytest

from dpr.core.errors import ConfigError
from dpr.data.iterators import ShardedDataIterator
from dpr.data.order import permutation, rank_slice


def pools(iterator: ShardedDataIterator, lap: int) -> list[list[int]]:
    """Of one lap."""
    return [iterator.rows(lap * iterator.num_pools + pool).tolist() for pool in range(iterator.num_pools)]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_each_pool_without_changing_it(world_size: int) -> None:
    whole = pools(ShardedDataIterator(101, global_batch_size=8, seed=3), lap=2)
    ranks = [
        ShardedDataIterator(101, global_batch_size=8, seed=3, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert [
        functools.reduce(operator.iadd, (rank.rows(24 + pool).tolist() for rank in ranks), [])
        for pool in range(12)
    ] == whole


def test_a_lap_uses_every_row_once_but_for_a_remainder_that_changes() -> None:
    iterator = ShardedDataIterator(101, global_batch_size=8, seed=3)
    left_out = []
    for lap in range(4):
        seen = functools.reduce(operator.iadd, pools(iterator, lap), [])
        assert len(seen) == len(set(seen)) == 96
        left_out.append(frozenset(range(101)) - set(seen))
    assert len(set(left_out)) == 4


def test_order_changes_with_seed_lap_and_data_set() -> None:
    orders = [permutation(50, *key).tolist() for key in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_order_is_the_one_recorded_here() -> None:
    """A change of this list would silently give resumed runs another order."""
    assert permutation(10, 12345, 0, 0).tolist() == RECORDED


RECORDED = [8, 7, 1, 2, 0, 4, 3, 9, 5, 6]


def test_a_pool_beyond_the_lap_starts_the_next_in_another_order() -> None:
    iterator = ShardedDataIterator(16, global_batch_size=4, seed=0)
    first, second = pools(iterator, 0), pools(iterator, 1)
    assert (
        sorted(functools.reduce(operator.iadd, first, []))
        == sorted(functools.reduce(operator.iadd, second, []))
        == list(range(16))
    )
    assert first != second


def test_rank_slices_cover_everything_once() -> None:
    for items in (0, 1, 3, 4, 13):
        covered = [index for rank in range(4) for index in range(items)[rank_slice(items, rank, 4)]]
        assert covered == list(range(items))


def test_a_pool_that_cannot_be_divided_among_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="global_batch_size=6"):
        ShardedDataIterator(100, global_batch_size=6, seed=0, rank=0, world_size=4)
