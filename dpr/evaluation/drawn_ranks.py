"""Whether a passage is among the first k, where of the passages above it some are known and of the others a draw was seen.

A right passage has ``hard`` known passages above it and an unknown number A of others, each of which was drawn with probability ``share``;
``drawn`` of them were. A is taken for gamma-Poisson, with a mean and a shape that are smooth functions of ``hard``, fitted by maximum
likelihood to all right passages. Then A - drawn, given what was drawn, is negative binomial. To count each passage drawn 1 / share times
would have twice the deviation, and a bias where 1 / share is not far below k.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import betainc, gammaln

_FITTED_HARD = 100  # ranks below do not matter to the first 100
_START = np.array([0.0, 1.0, 0.0, 0.0, 0.0])  # logarithms: of the mean, linear and square in log(1 + hard); of the shape, linear
_SPREAD = np.array([1e9, 1.0, 1.0, 2.0, 1.0])  # standard deviations of a weak prior, for few questions


def probabilities_within(k: int, hard: np.ndarray, drawn: np.ndarray, share: float) -> np.ndarray:
    """For each right passage (R,) how likely its rank is at most ``k``, given the numbers above it; exact where ``share`` is 1."""
    mean, shape = _mean_and_shape(_fitted(hard, drawn, share) if share < 1 else _START, hard)
    unseen = k - 1 - hard - drawn
    chance = (shape / mean + share) / (shape / mean + 1)
    return np.where(unseen < 0, 0.0, betainc(shape + drawn, np.maximum(unseen, 0) + 1, np.minimum(chance, 1.0)))


def _fitted(hard: np.ndarray, drawn: np.ndarray, share: float) -> np.ndarray:
    hard, drawn = (counts[hard < _FITTED_HARD] for counts in (hard, drawn))

    def loss(values: np.ndarray) -> float:
        mean, shape = _mean_and_shape(values, hard)
        mean = mean * share
        likelihood = gammaln(shape + drawn) - gammaln(shape) - shape * np.log1p(mean / shape) - drawn * np.log1p(shape / mean)
        return float((((values - _START) / _SPREAD) ** 2).sum() / 2 - likelihood.sum())

    return np.asarray(minimize(loss, _START, method="L-BFGS-B").x)


def _mean_and_shape(values: np.ndarray, hard: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    size = np.log1p(hard)
    mean, shape = values[0] + size * (values[1] + size * values[3]), values[2] + size * values[4]
    return np.exp(np.clip(mean, -20, 20)), np.exp(np.clip(shape, -20, 20))
