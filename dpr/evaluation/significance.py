"""Is a difference between two systems more than chance? Paired tests over the questions that both answered.

Questions are taken as a sample of those that could have been asked. The t test and the interval assume that mean differences are normal,
which holds from some dozens of questions on; the randomisation test assumes only that a difference could have had either sign.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpr.core.errors import InputError

FLIPS = 100_000
LEVEL = 0.05
"""Intervals cover 1 - LEVEL, and a difference counts as shown where the adjusted p is below it."""
POWER = 0.8
_BITS_AT_ONCE = 1 << 22
_ROUNDING = 1e-12


@dataclass(frozen=True)
class PairedTest:
    """``second`` against ``first``, both means over the same questions.

    Attributes:
        difference: second - first, with ``low`` and ``high`` of its interval.
        p_t, p_flips: two-sided, of the paired t test and of the randomisation test.
        detectable: the smallest true difference that a test over so many questions with this spread finds 4 times in 5.
    """

    num_questions: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_t: float
    p_flips: float
    detectable: float


def paired_test(first: Sequence[float], second: Sequence[float], *, flips: int = FLIPS, seed: int = 0) -> PairedTest:
    """Compares the values of two systems, question by question in the same order.

    Raises:
        InputError: fewer than two questions.
    """
    from scipy import stats

    ours, theirs = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if ours.shape != theirs.shape:
        raise ValueError(f"{len(ours)} values against {len(theirs)}")
    if len(ours) < 2:
        raise InputError(f"{len(ours)} judged questions are too few for a test", expected="at least 2")
    differences = theirs - ours
    deviation = float(differences.std(ddof=1))
    if np.ptp(differences) == 0:  # where all differ alike, there is nothing to estimate a deviation from
        p_t = 1.0 if differences[0] == 0 else 0.0
    else:
        p_t = float(stats.ttest_rel(theirs, ours).pvalue)
    difference, (low, high) = float(differences.mean()), mean_interval(differences)
    return PairedTest(
        num_questions=len(ours),
        first=float(ours.mean()),
        second=float(theirs.mean()),
        difference=difference,
        low=low,
        high=high,
        p_t=p_t,
        p_flips=sign_flip_p(differences, flips=flips, seed=seed),
        detectable=detectable_difference(deviation, len(ours)),
    )


def sign_flip_p(differences: np.ndarray, *, flips: int = FLIPS, seed: int = 0) -> float:
    """The randomisation test: the share of random signs whose sum is at least as far from 0, the signs observed among them, so never 0."""
    moved = differences[differences != 0]  # the others add nothing under any sign
    if not len(moved):
        return 1.0
    rng = np.random.default_rng(seed)
    total = float(moved.sum())
    least = abs(total) - _ROUNDING * float(np.abs(moved).sum())
    at_once = max(1, _BITS_AT_ONCE // len(moved))
    as_far = 0
    for start in range(0, flips, at_once):
        count = min(at_once, flips - start)
        bits = np.unpackbits(np.frombuffer(rng.bytes(-(-count * len(moved) // 8)), dtype=np.uint8), count=count * len(moved))
        flipped = bits.reshape(count, len(moved)).astype(np.float64) @ moved
        as_far += int((np.abs(total - 2 * flipped) >= least).sum())
    return (as_far + 1) / (flips + 1)


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """The interval of a mean by Student's t; the mean itself where a single value is all there is."""
    from scipy import stats

    mean = float(values.mean())
    if len(values) < 2:
        return mean, mean
    half = float(stats.t.ppf(1 - LEVEL / 2, len(values) - 1)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half


def detectable_difference(deviation: float, num_questions: int) -> float:
    """The true difference that a two-sided test finds with probability ``POWER``, where differences deviate so much."""
    from scipy import stats

    return float(stats.norm.ppf(1 - LEVEL / 2) + stats.norm.ppf(POWER)) * deviation / math.sqrt(num_questions)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for a family of tests by Holm's method: below a level, the chance of any false find in the family is below it."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
