"""Mixed data sets have exact counts and the same global batches for any number of ranks and any history."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from dpr.core.errors import ConfigError
from dpr.data.iterators import (
    GlobalBatchIterator,
    MixedDataIterator,
    MultiSetDataIterator,
    Sampling,
    ShardedDataIterator,
    largest_remainder,
)
from dpr.data.order import WORDS, group, permutation, rank_slice

SIZES, GLOBAL_BATCH = (403, 90, 37), 8
Made = Callable[..., GlobalBatchIterator]


def one_set_a_global_batch(
    sizes: tuple[int, ...] = SIZES, *, rank: int = 0, world_size: int = 1, seed: int = 1, **sampling: Any
) -> GlobalBatchIterator:
    features = features_of(sizes, sampling) or [None] * len(sizes)
    shared = {"global_batch_size": GLOBAL_BATCH, "seed": seed, "rank": rank, "world_size": world_size}
    sets = [
        ShardedDataIterator(size, **shared, dataset=number, features=features[number])
        for number, size in enumerate(sizes)
    ]
    return MultiSetDataIterator(sets, seed=seed, sampling=Sampling(**sampling))


def mixed(
    sizes: tuple[int, ...] = SIZES, *, rank: int = 0, world_size: int = 1, seed: int = 1, **sampling: Any
) -> GlobalBatchIterator:
    shared = {"global_batch_size": GLOBAL_BATCH, "seed": seed, "rank": rank, "world_size": world_size}
    features = features_of(sizes, sampling)
    return MixedDataIterator(sizes, **shared, sampling=Sampling(mixed=True, **sampling), features=features)


def features_of(sizes: tuple[int, ...], sampling: dict[str, Any]) -> list[np.ndarray] | None:
    if sampling.get("group_by_words"):
        topics = [np.random.default_rng(dataset).integers(0, 9, size) for dataset, size in enumerate(sizes)]
        return [words_around(each) for each in topics]
    return None


def words_around(topics: np.ndarray) -> np.ndarray:
    """Features of rows near the middle of their topic, each with a positive of its own."""
    rng, features = np.random.default_rng(5), np.zeros(len(topics), dtype=WORDS)
    middles = rng.integers(-150, 150, (int(topics.max()) + 1, WORDS["vector"].shape[0]))
    features["vector"] = middles[topics] + rng.integers(-30, 30, features["vector"].shape)
    features["positive"] = np.arange(len(topics))
    return features


def rows_of(iterator: GlobalBatchIterator, epochs: Iterable[int]) -> list[tuple[int, int]]:
    """(data set, row) of all global batches of some epochs, in order."""
    keys = [(epoch, number) for epoch in epochs for number in range(iterator.batches_per_epoch)]
    batches = [iterator.global_batch(*key) for key in keys]
    places = [zip(batch.datasets.tolist(), batch.rows.tolist(), strict=True) for batch in batches]
    return [place for of_batch in places for place in of_batch]


BOTH = pytest.mark.parametrize("made", [one_set_a_global_batch, mixed])
WAYS = pytest.mark.parametrize(
    "sampling",
    [{}, {"weights": [1, 2, 1]}, {"temperature": 3.0}, {"rates": [0.5, 2, 1]}, {"group_by_words": True}],
    ids=lambda value: next(iter(value), "natural"),
)


def test_largest_remainder_is_exact_and_in_proportion() -> None:
    assert largest_remainder(10, np.array([0.5, 0.3, 0.2])) == (5, 3, 2)
    assert largest_remainder(10, np.array([1, 1, 1]) / 3) == (4, 3, 3)
    # exactly .7, 1.4, 4.9: the first and last are nearest to the next
    assert largest_remainder(7, np.array([0.1, 0.2, 0.7])) == (1, 1, 5)
    assert largest_remainder(3, np.array([0.0, 1.0])) == (0, 3)
    for total in range(40):
        shares = np.random.default_rng(total).dirichlet([1, 1, 1, 1])
        counts = largest_remainder(total, shares)
        assert sum(counts) == total
        assert all(abs(count - total * share) < 1 for count, share in zip(counts, shares, strict=True))


def test_weights_say_the_shares_of_an_epoch() -> None:
    # 50 + 11 + 4 = 65 natural global batches; a quarter, a half, a quarter of them are 16.25, 32.5 and 16.25.
    found = one_set_a_global_batch(weights=[1, 2, 1])
    assert found.counts == (16, 33, 16) and found.batches_per_epoch == 65
    for epoch in (0, 3):
        counted = Counter(dataset for dataset, _ in rows_of(found, [epoch]))
        assert counted == {0: 16 * GLOBAL_BATCH, 1: 33 * GLOBAL_BATCH, 2: 16 * GLOBAL_BATCH}
    assert mixed(weights=[1, 2, 1]).counts == (132, 264, 132)  # of 530 rows 66 whole global batches
    assert one_set_a_global_batch(weights=[1, 1, 0]).counts == (31, 30, 0)


@pytest.mark.parametrize(
    ("temperature", "shares"), [(1.0, (403, 90, 37)), (2.0, (403**0.5, 90**0.5, 37**0.5)), (1e9, (1, 1, 1))]
)
def test_a_temperature_flattens_the_sizes(temperature: float, shares: tuple[float, ...]) -> None:
    for found, unit in (
        (one_set_a_global_batch(temperature=temperature), 1),
        (mixed(temperature=temperature), GLOBAL_BATCH),
    ):
        total = sum(found.counts)
        for count, share in zip(found.counts, shares, strict=True):
            assert abs(count - total * share / sum(shares)) < 1, unit


@BOTH
def test_drawn_global_batches_have_the_shares_that_the_temperature_states(made: Made) -> None:
    """Chi-square of 2 degrees of freedom, early and late in epochs and in global batches."""
    found = made(temperature=2.0)
    shares = np.sqrt(SIZES) / np.sqrt(SIZES).sum()
    places = np.array([dataset for epoch in range(20) for dataset, _ in rows_of(found, [epoch])])
    places = places.reshape(20, found.batches_per_epoch, GLOBAL_BATCH)
    for part in (
        places[:10, :10, 0].ravel(),
        places[10:, -10:, GLOBAL_BATCH - 1].ravel(),
        places[:, ::7, 3].ravel(),
    ):
        expected = shares * part.size
        statistic = float(((np.bincount(part, minlength=3) - expected) ** 2 / expected).sum())
        assert statistic < 13.8, "would happen once in a thousand seeds"


@pytest.mark.parametrize("grouped", [{}, {"group_by_words": True}], ids=str)
def test_natural_shares_take_every_row_once_an_epoch(grouped: dict[str, Any]) -> None:
    for found, most_left in (
        (one_set_a_global_batch(**grouped), 3 * (GLOBAL_BATCH - 1)),
        (mixed(**grouped), GLOBAL_BATCH - 1),
    ):
        left_out = []
        for epoch in range(5):
            rows = rows_of(found, [epoch])
            everything = {(dataset, row) for dataset, size in enumerate(SIZES) for row in range(size)}
            assert len(rows) == len(set(rows)) >= len(everything) - most_left
            left_out.append(frozenset(everything - set(rows)))
        assert len(set(left_out)) == 5, "what is left over must be other rows in each epoch"


@BOTH
def test_a_large_set_is_continued_in_the_next_epoch(made: Made) -> None:
    found = made(weights=[1, 1, 1])
    by_epoch = [[row for dataset, row in rows_of(found, [epoch]) if dataset == 0] for epoch in range(2)]
    assert all(len(rows) == 22 * GLOBAL_BATCH == len(set(rows)) for rows in by_epoch)
    assert len({row for rows in by_epoch for row in rows}) == 2 * 22 * GLOBAL_BATCH


@BOTH
def test_a_small_set_is_passed_over_again_in_another_order(made: Made) -> None:
    found = made((40, 90, 30), weights=[1, 0, 3])
    rows = [row for dataset, row in rows_of(found, [0]) if dataset == 2]
    assert len(rows) == 48 and 1 < max(Counter(rows).values()) <= 2 and found.passes()[2] > 1
    passes = [
        (row, pass_number)
        for global_batch in range(found.batches_per_epoch)
        for dataset, row, pass_number in zip(
            *(part.tolist() for part in found.global_batch(0, global_batch)), strict=True
        )
        if dataset == 2
    ]
    assert len(set(passes)) == 48, "a row has another pass each time, so that it draws other negatives"


@BOTH
@WAYS
def test_global_batches_are_the_same_for_any_number_of_ranks(made: Made, sampling: dict[str, Any]) -> None:
    alone = made(**sampling)
    for world_size in (2, 4):
        ranks = [made(rank=rank, world_size=world_size, **sampling) for rank in range(world_size)]
        for key in ((0, 0), (2, 5), (1, alone.batches_per_epoch - 1)):
            parts = [rank.global_batch(*key) for rank in ranks]
            assert all(len(part.rows) == GLOBAL_BATCH // world_size for part in parts)
            for column, whole in enumerate(alone.global_batch(*key)):
                assert np.concatenate([part[column] for part in parts]).tolist() == whole.tolist()


@BOTH
@WAYS
def test_a_global_batch_does_not_depend_on_history(made: Made, sampling: dict[str, Any]) -> None:
    worn = made(**sampling)
    rows_of(worn, [3, 0])
    for key in ((1, 4), (0, 0), (4, 2)):
        found, expected = (each.global_batch(*key) for each in (worn, made(**sampling)))
        assert [part.tolist() for part in found] == [part.tolist() for part in expected]
    assert rows_of(worn, [1]) != rows_of(worn, [2])
    assert rows_of(worn, [1]) != rows_of(made(**sampling, seed=2), [1])


def test_one_set_a_global_batch_or_all_sets_in_one() -> None:
    sets = []
    for found in (one_set_a_global_batch(), mixed()):
        batches = [found.global_batch(0, number) for number in range(60)]
        sets.append([len(set(batch.datasets.tolist())) for batch in batches])
    assert set(sets[0]) == {1} and max(sets[1]) == 3
    # Most global batches of 8 hold several sets, as drawing 8 rows of 403, 90 and 37 would give.
    several = sum(number > 1 for number in sets[1])
    assert 42 <= several <= 60  # 1 - 0.76^8 - ... = 0.89 of them


def test_rates_multiply_global_batches_as_before() -> None:
    found = one_set_a_global_batch((40, 20), rates=[0.5, 2.0])
    assert found.counts == (2, 4) and found.passes() == [0.4, 2.0]
    order = [dataset for dataset, _ in rows_of(found, [3])]
    assert order != sorted(order)
    # 56 of the 60 rows fill whole global batches; 18.67 and 37.33
    assert mixed((40, 20), rates=[0.5, 2.0]).counts == (19, 37)


def test_global_batches_of_rows_near_each_other_in_an_order_that_says_nothing_of_it() -> None:
    topics = np.random.default_rng(0).permutation(np.repeat(np.arange(30), 4 * GLOBAL_BATCH))
    places = group(words_around(topics), GLOBAL_BATCH, np.random.default_rng(1))
    assert sorted(places.tolist()) == list(range(len(topics)))
    global_batches = topics[places].reshape(-1, GLOBAL_BATCH)
    assert (global_batches == global_batches[:, :1]).all(), "each topic fills whole global batches"
    assert abs(np.corrcoef(np.arange(len(global_batches)), global_batches[:, 0])[0, 1]) < 0.3
    assert (np.diff(global_batches[:, 0]) == 0).mean() < 0.2
    first = {int(batch.argmin()) for batch in places[:904].reshape(-1, GLOBAL_BATCH)}
    assert len(first) == GLOBAL_BATCH, "the row that the others are near is anywhere in the global batch"


def test_rows_with_one_positive_are_kept_apart_while_there_are_others() -> None:
    features = words_around(np.zeros(6 * GLOBAL_BATCH, dtype=np.int64))
    features["positive"] = np.arange(6 * GLOBAL_BATCH) // 6  # six questions of each, the nearest rows of all
    features["vector"] = features["vector"][features["positive"]]
    order = group(features, GLOBAL_BATCH, np.random.default_rng(1))
    global_batches = features["positive"][order].reshape(-1, GLOBAL_BATCH)
    assert [len(set(global_batch)) for global_batch in global_batches.tolist()] == [GLOBAL_BATCH] * 6
    features["positive"] = 0
    assert len(set(group(features, GLOBAL_BATCH, np.random.default_rng(1)).tolist())) == 6 * GLOBAL_BATCH


@pytest.mark.parametrize(
    ("sampling", "sizes", "message"),
    [
        ({"rates": [1.0]}, (8, 8), "train_sampling_rates has 1 values for 2 train_datasets"),
        ({"rates": [1, -1]}, (8, 8), "train_sampling_rates=.*at least 0"),
        ({"rates": [0, 0]}, (8, 8), "at least one of them above 0"),
        ({"temperature": 0.0}, (8, 8), "must be above 0"),
        ({}, (3, 8), "3 rows do not fill a single global batch.*mixed=true"),
        ({"rates": [0, 0.1]}, (8, 8), "no data set"),
        ({"rates": [1, 2], "temperature": 2.0}, (8, 8), "rates and train.sampling.temperature are mutually"),
    ],
)
def test_impossible_mixtures(sampling: dict[str, Any], sizes: tuple[int, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        one_set_a_global_batch(sizes, **sampling)


def test_small_sets_can_be_mixed_and_all_together_must_fill_a_global_batch() -> None:
    assert mixed((3, 8)).counts == (2, 6)
    assert one_set_a_global_batch((40, 3), weights=[1, 0]).counts == (5, 0), "a set that gives nothing"
    with pytest.raises(ConfigError, match="no data set"):
        mixed((3, 4))


def test_a_share_too_small_for_a_global_batch_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert one_set_a_global_batch((400, 8), weights=[999, 1]).counts == (51, 0)
    assert "data set 1 is left out" in caplog.text


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
