"""Significance of differences between two systems: paired tests over the questions that both answered.

Questions are taken as a sample of those that could have been asked. The t test and the interval assume that
mean differences are normal, which holds from a few dozen questions. The randomisation test assumes only that
a difference could have had either sign.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # scipy.stats, which has these under other names, takes a second to import

from dpr.core.errors import InputError
from dpr.core.logs import counted

HIGHER = "higher"
LOWER = "lower"
NO_DIFFERENCE = "no difference"
TOO_FEW = "too few questions"
FEWEST = 10
"""Fewest questions for a conclusion. With fewer, or if all differ alike, the spread of other questions is
unknown."""
SHOWN = ".3f"
"""Format of means. A difference that this format does not show counts as none."""
FLIPS = 100_000
LEVEL = 0.05
"""Intervals cover 1 - LEVEL. A difference is significant if its adjusted p-value is below LEVEL."""
POWER = 0.8
_BITS_AT_ONCE = 1 << 22
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A mean over questions, or over sets of questions, with its interval.

    ``variance`` is that of the mean; ``freedom`` are its degrees of freedom.
    """

    mean: float
    low: float
    high: float
    variance: float
    freedom: float

    @classmethod
    def of(cls, mean: float, variance: float, freedom: float) -> Estimate:
        half = float(special.stdtrit(freedom, 1 - LEVEL / 2)) * math.sqrt(variance) if variance else 0.0
        return cls(mean, mean - half, mean + half, variance, freedom)

    @property
    def ends(self) -> tuple[float, float]:
        """Returns the interval of a mean metric, cut to 0 and 1. No mean lies outside, so the interval's
        coverage stays the same."""
        return max(self.low, 0.0), min(self.high, 1.0)

    @property
    def outcome(self) -> str:
        """Returns ``HIGHER`` or ``LOWER`` if the interval of a mean difference excludes 0, else
        ``NO_DIFFERENCE``, or ``TOO_FEW``."""
        if self.freedom < FEWEST - 1 or (self.mean and not self.variance):
            return TOO_FEW
        return HIGHER if self.low > 0 else LOWER if self.high < 0 else NO_DIFFERENCE


@dataclass(frozen=True)
class PairedTest:
    """Comparison of ``second`` with ``first``, both means over the same questions.

    Attributes:
        outcome: outcome of the difference (``Estimate.outcome``). It is also ``NO_DIFFERENCE`` if both means
            are shown by the same figures.
        difference: second - first; ``low`` and ``high`` bound its interval.
        p_t: two-sided p-value of the paired t test; 1 if all questions differ alike, which shows no
            deviation.
        p_flips: two-sided p-value of the randomisation test.
        detectable: the smallest true difference that a test over as many questions with this spread finds 4
            times in 5.
    """

    num_questions: int
    outcome: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_t: float
    p_flips: float
    detectable: float


def estimate(values: Sequence[float] | np.ndarray) -> Estimate:
    """Returns the mean of a sample of questions with Student's interval; without an interval if all values
    are alike."""
    array = np.asarray(values, dtype=np.float64)
    count = len(array)
    variance = float(array.var(ddof=1)) if count > 1 else 0.0
    if variance <= (_ROUNDING * float(np.abs(array).max())) ** 2:
        variance = 0.0
    return Estimate.of(float(array.mean()), variance / count, max(count - 1, 1))


def mean_of(parts: Sequence[Estimate]) -> Estimate:
    """Returns the mean over sets of questions, with equal weights. Its interval is about other questions of
    the same sets, not about other sets. Degrees of freedom are by Welch and Satterthwaite."""
    variance = math.fsum(part.variance for part in parts)
    spread = math.fsum(part.variance**2 / part.freedom for part in parts)
    mean = math.fsum(part.mean for part in parts) / len(parts)
    return Estimate.of(
        mean,
        variance / len(parts) ** 2,
        variance**2 / spread if spread else min(part.freedom for part in parts),
    )


def paired_test(
    *sets: tuple[Sequence[float], Sequence[float]], flips: int = FLIPS, seed: int = 0
) -> PairedTest:
    """Compares two systems by their values, question by question in the same order; over several sets, by the
    mean of their means.

    Raises:
        InputError: a set without questions.
    """
    pairs = [
        (np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)) for first, second in sets
    ]
    for first, second in pairs:
        if first.shape != second.shape:
            raise ValueError(f"{len(first)} values against {len(second)}")
        if not len(first):
            raise InputError("there are no judged questions to test")
    mean = mean_of([estimate(second - first) for first, second in pairs])
    error = math.sqrt(mean.variance)
    before = math.fsum(float(first.mean()) for first, _ in pairs) / len(pairs)
    after = math.fsum(float(second.mean()) for _, second in pairs) / len(pairs)
    is_hidden = f"{before:{SHOWN}}" == f"{after:{SHOWN}}" and mean.outcome != TOO_FEW
    return PairedTest(
        num_questions=sum(len(first) for first, _ in pairs),
        outcome=NO_DIFFERENCE if is_hidden else mean.outcome,
        first=before,
        second=after,
        difference=mean.mean,
        low=mean.low,
        high=mean.high,
        p_t=2 * float(special.stdtr(mean.freedom, -abs(mean.mean) / error)) if error else 1.0,
        p_flips=sign_flip_p(
            np.concatenate([(second - first) / len(first) for first, second in pairs]), flips=flips, seed=seed
        ),
        detectable=detectable_difference(error),
    )


def sign_flip_p(differences: np.ndarray, *, flips: int = FLIPS, seed: int = 0) -> float:
    """Returns the p-value of the randomisation test: the share of random signs whose sum is at least as far
    from 0. The observed signs are one of the draws, so it is never 0."""
    moved = differences[differences != 0]  # the others add nothing under any sign
    if not len(moved):
        return 1.0
    rng = np.random.default_rng(seed)
    total = float(moved.sum())
    least = abs(total) - _ROUNDING * float(np.abs(moved).sum())
    at_once = max(1, _BITS_AT_ONCE // len(moved))
    as_far = 0
    for start in counted(range(0, flips, at_once), "randomisation test", unit="random signs"):
        count = min(at_once, flips - start)
        bits = np.unpackbits(
            np.frombuffer(rng.bytes(-(-count * len(moved) // 8)), dtype=np.uint8), count=count * len(moved)
        )
        flipped = bits.reshape(count, len(moved)).astype(np.float64) @ moved
        as_far += int((np.abs(total - 2 * flipped) >= least).sum())
    return (as_far + 1) / (flips + 1)


def detectable_difference(error: float) -> float:
    """Returns the true difference that a two-sided test finds with probability ``POWER``, from the standard
    error of the difference."""
    return float(special.ndtri(1 - LEVEL / 2) + special.ndtri(POWER)) * error


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for a family of tests by Holm's method. If those below a level count as
    found, the chance of any false find in the family is below that level."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
