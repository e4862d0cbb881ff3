"""Paired tests: against exact enumeration, scipy and numbers by hand; false finds are as rare as promised."""

import numpy as np
import pytest

from dpr.core.errors import InputError
from dpr.evaluation.significance import (
    detectable_difference,
    estimate,
    holm,
    mean_of,
    paired_test,
    sign_flip_p,
)


def test_the_randomisation_test_is_the_share_of_all_signs() -> None:
    from scipy import stats

    differences = np.random.default_rng(0).normal(0.3, 0.5, 10)
    signs = 1 - 2 * ((np.arange(1024)[:, None] >> np.arange(10)) & 1)
    exact = (np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12).mean()
    assert sign_flip_p(differences) == pytest.approx(exact, abs=0.004)
    theirs = stats.permutation_test((differences,), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert exact == pytest.approx(theirs.pvalue)


def test_questions_without_a_difference_change_only_the_spread() -> None:
    differences = np.array([0.5, 0.25, -0.125, 0.5])
    padded = np.concatenate([differences, np.zeros(1000)])
    assert sign_flip_p(padded) == sign_flip_p(differences)
    assert sign_flip_p(np.zeros(5)) == 1.0


def test_equal_sums_count_as_equally_far() -> None:
    """Of 0/1 metrics most sums tie; here 6 of 6 signs alike are 2 of 64."""
    assert sign_flip_p(np.full(6, 0.1)) == pytest.approx(2 / 64, abs=0.002)


def test_the_t_test_and_the_interval_are_those_of_the_books() -> None:
    from scipy import stats

    rng = np.random.default_rng(1)
    first, second = rng.random(40), rng.random(40) + 0.1
    test = paired_test((first.tolist(), second.tolist()), flips=1000)
    reference = stats.ttest_rel(second, first)
    assert test.p_t == pytest.approx(reference.pvalue)
    interval = reference.confidence_interval(0.95)
    assert (test.low, test.high) == pytest.approx((interval.low, interval.high))
    assert test.difference == pytest.approx(second.mean() - first.mean())
    swapped = paired_test((second.tolist(), first.tolist()), flips=1000)
    assert (swapped.difference, swapped.p_flips) == pytest.approx((-test.difference, test.p_flips))


def test_differences_that_are_all_alike_have_no_spread() -> None:
    same = paired_test(([0.5] * 9, [0.5] * 9))
    assert (same.p_t, same.p_flips, same.low, same.high, same.detectable) == (1, 1, 0, 0, 0)
    with pytest.raises(InputError, match="no judged questions"):
        paired_test(([], []))
    assert (estimate([0.5]).low, estimate([0.5]).high) == (0.5, 0.5)


def spread(number: int, mean: float) -> list[float]:
    """Values around a mean, half of them 0.1 above, half of them below."""
    return [mean + 0.1 * (-1) ** index for index in range(number)]


@pytest.mark.parametrize(
    ("sets", "outcome"),
    [
        ([([0.0], [1.0])], "too few questions"),
        ([([0.0, 0.0], [1.0, 1.0])], "too few questions"),
        ([([0.0] * 9, spread(9, 0.9))], "too few questions"),
        ([([0.0] * 30, [1.0] * 30)], "too few questions"),
        ([([0.9, 0.5] * 20, [0.8, 0.4] * 20)], "too few questions"),  # alike but for rounding
        ([([0.0] * 4, spread(4, 0.9)), ([0.0] * 4, [1.0] * 4)], "too few questions"),
        ([([0.5] * 12, [0.5] * 12)], "no difference"),
        ([([0.5, 1.0] * 20, [0.5, 1.0] * 20)] * 2, "no difference"),
        # 2.559 both, and p < 0.001
        ([([2.5592] * 400, [2.5588 + value / 1000 for value in spread(400, 0)])], "no difference"),
        ([([0.0] * 10, spread(10, 0.9))], "higher"),
        ([(spread(10, 0.9), [0.0] * 10)] * 2, "lower"),
        ([([0.0] * 10, spread(10, 0.01))], "no difference"),
    ],
)
def test_a_difference_is_told_where_its_spread_is_known_and_its_figures_show_it(
    sets: list[tuple[list[float], list[float]]], outcome: str
) -> None:
    test = paired_test(*sets)
    assert test.outcome == outcome
    assert test.p_t > 0 or test.low < test.high


def test_chance_is_taken_for_a_find_as_often_as_promised() -> None:
    rng = np.random.default_rng(2)
    values = [paired_test(tuple(rng.random((2, 30)).tolist()), flips=500) for _ in range(400)]
    for p in ([test.p_t for test in values], [test.p_flips for test in values]):
        assert 0.02 < np.mean(np.array(p) <= 0.05) < 0.08
    assert 0.92 < np.mean([test.low <= 0 <= test.high for test in values]) < 0.98


def test_a_difference_as_large_as_detectable_is_found_four_times_in_five() -> None:
    rng = np.random.default_rng(3)
    true = detectable_difference(0.025)
    found = [
        paired_test(([0.0] * 100, rng.normal(true, 0.25, 100).tolist()), flips=500).p_flips <= 0.05
        for _ in range(300)
    ]
    assert 0.72 < np.mean(found) < 0.88
    assert [round(detectable_difference(0.25 / number**0.5), 3) for number in (50, 300, 2012)] == [
        0.099,
        0.040,
        0.016,
    ]


def test_a_mean_of_sets_weighs_sets_the_same_and_its_interval_holds_as_often_as_promised() -> None:
    rng = np.random.default_rng(4)
    held, found = [], []
    for _ in range(300):
        sets = [
            rng.normal(true, deviation, number)
            for true, deviation, number in ((0.2, 0.3, 12), (0.6, 0.1, 60))
        ]
        mean = mean_of([estimate(values) for values in sets])
        assert mean.mean == pytest.approx((sets[0].mean() + sets[1].mean()) / 2)
        held.append(mean.low <= 0.4 <= mean.high)
        found.append(
            paired_test(*([[0.4] * len(values), values.tolist()] for values in sets), flips=300).p_t <= 0.05
        )
    assert 0.91 < np.mean(held) < 0.99
    assert [not hit for hit in held] == found, "the t test and the interval agree"


def test_several_sets_are_one_test_of_their_mean() -> None:
    from scipy import stats

    rng = np.random.default_rng(5)
    small, large = rng.random((2, 8)), rng.random((2, 50))
    large[1] += 0.2
    test = paired_test((small[0], small[1]), (large[0], large[1]), flips=20_000)
    weights = np.concatenate([np.full(8, 1 / 8), np.full(50, 1 / 50)]) / 2
    differences = np.concatenate([small[1] - small[0], large[1] - large[0]])
    assert test.difference == pytest.approx(weights @ differences)
    assert test.second - test.first == pytest.approx(test.difference)
    signs = 1 - 2 * np.random.default_rng(6).integers(0, 2, (20_000, 58))
    as_far = np.abs(signs @ (weights * differences)) >= abs(weights @ differences)
    assert test.p_flips == pytest.approx(as_far.mean(), abs=0.02)
    alike = rng.random((2, 2, 30))
    # the same degrees of freedom
    welch = stats.ttest_ind(*(second - first for first, second in alike), equal_var=False)
    found = mean_of([estimate(second - first) for first, second in alike])
    assert found.freedom == pytest.approx(welch.df)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []
