"""Order is a function: which rows a pool holds depends on (seed, epoch, pool) and nothing else."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest

from dpr.core.errors import ConfigError
from dpr.data.iterators import LocalShardedDataIterator, MultiSetDataIterator, ShardedDataIterator
from dpr.data.order import permutation, rank_slice


def pools(iterator: ShardedDataIterator, epoch: int, count: int | None = None) -> list[list[int]]:
    return [iterator.rows(epoch, pool).tolist() for pool in range(iterator.num_pools if count is None else count)]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_each_pool_without_changing_it(world_size: int) -> None:
    whole = pools(ShardedDataIterator(101, global_batch_size=8, seed=3), epoch=2)
    ranks = [ShardedDataIterator(101, global_batch_size=8, seed=3, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert [functools.reduce(operator.iadd, (rank.rows(2, pool).tolist() for rank in ranks), []) for pool in range(12)] == whole


def test_an_epoch_uses_every_row_once_but_for_a_remainder_that_changes() -> None:
    iterator = ShardedDataIterator(101, global_batch_size=8, seed=3)
    left_out = []
    for epoch in range(4):
        seen = functools.reduce(operator.iadd, pools(iterator, epoch), [])
        assert len(seen) == len(set(seen)) == 96
        left_out.append(frozenset(range(101)) - set(seen))
    assert len(set(left_out)) == 4


def test_order_changes_with_seed_epoch_data_set_and_lap() -> None:
    orders = [permutation(50, *key).tolist() for key in ((1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1))]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 5


def test_order_is_the_one_recorded_here() -> None:
    """A change of this list would silently give resumed runs another order."""
    assert permutation(10, 12345, 0, 0).tolist() == RECORDED


RECORDED = [8, 7, 1, 2, 0, 4, 3, 9, 5, 6]


def test_a_pool_beyond_the_epoch_starts_another_pass_in_another_order() -> None:
    iterator = ShardedDataIterator(16, global_batch_size=4, seed=0)
    first, second = pools(iterator, 0), [iterator.rows(0, pool).tolist() for pool in range(4, 8)]
    assert sorted(functools.reduce(operator.iadd, first, [])) == sorted(functools.reduce(operator.iadd, second, [])) == list(range(16))
    assert first != second


def test_local_shards_stay_in_their_part_and_cover_it() -> None:
    for num_rows in (40, 43):
        for rank in range(4):
            iterator = LocalShardedDataIterator(num_rows, global_batch_size=8, seed=0, rank=rank, world_size=4)
            part = rank_slice(num_rows, rank, 4)
            rows = functools.reduce(operator.iadd, (iterator.rows(1, pool).tolist() for pool in range(iterator.num_pools)), [])
            assert iterator.num_pools == 5
            assert len(set(rows)) == 10
            assert set(rows) <= set(range(part.start, part.stop))


def test_rank_slices_cover_everything_once() -> None:
    for items in (0, 1, 3, 4, 13):
        covered = [index for rank in range(4) for index in range(items)[rank_slice(items, rank, 4)]]
        assert covered == list(range(items))


def test_sampling_rates_multiply_pools_and_each_pool_comes_from_one_set() -> None:
    sets = [ShardedDataIterator(rows, global_batch_size=4, seed=1, dataset=number) for number, rows in enumerate((40, 20))]
    mixed = MultiSetDataIterator(sets, seed=1, sampling_rates=[0.5, 2.0])
    epoch = list(mixed.iterate(3))
    assert mixed.pools_of_set == (5, 10)
    assert [pool.dataset for pool in epoch].count(1) == 10
    assert [pool.dataset for pool in epoch] != sorted(pool.dataset for pool in epoch)
    rows = np.concatenate([pool.rows for pool in epoch if pool.dataset == 1])
    assert sorted(rows.tolist()) == sorted([*range(20), *range(20)])
    assert [pool.rows.tolist() for pool in mixed.iterate(3, start=7)] == [pool.rows.tolist() for pool in epoch[7:]]


@pytest.mark.parametrize(
    ("rates", "rows", "message"),
    [
        ([1.0], (8, 8), "give one for each"),
        ([1, -1], (8, 8), "negative"),
        (None, (3, 8), "too few rows"),
        ([0, 0.1], (8, 8), "no data set"),
    ],
)
def test_impossible_mixtures_are_refused(rates: list[float] | None, rows: tuple[int, int], message: str) -> None:
    sets = [ShardedDataIterator(count, global_batch_size=4, seed=1) for count in rows]
    with pytest.raises(ConfigError, match=message):
        MultiSetDataIterator(sets, seed=1, sampling_rates=rates)


def test_a_pool_that_cannot_be_divided_among_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="global_batch_size=6"):
        ShardedDataIterator(100, global_batch_size=6, seed=0, rank=0, world_size=4)
