"""How many rows or pools each train set contributes to an epoch. Counts are exact and the same in every
epoch.

With N_i the rows of set i and Q the questions of a pool, set i has the share p_i of an epoch:

    rates        p_i proportional to rate_i N_i       (no rates: 1)
    weights      p_i proportional to weight_i
    temperature  p_i proportional to N_i ^ (1/T)      (T = 1: as many as there are, a large T: all sets alike)

An epoch's P pools are divided by the largest remainder: every set gets its share rounded down, and the rest
goes to the sets that were rounded down most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.data.settings import SamplingSettings

logger = get_logger(__name__)


@dataclass
class Sampling(SamplingSettings):
    """Which rows make up the pools of an epoch: the settings, ``rates``, which multiply what each set gives,
    and the ``weights`` of the sets (``datasets.<name>.weight``)."""

    rates: list[float] | None = None
    weights: list[float] | None = None

    def __post_init__(self) -> None:
        self.check("train.sampling.")
        self.check_shares(self.rates)

    def pools_of_sets(
        self, num_rows: Sequence[int], num_pools: Sequence[int], names: Sequence[str]
    ) -> tuple[int, ...]:
        """Pools that each set contributes to an epoch where a pool comes from one set; ``num_pools`` are
        those of one lap.

        Raises:
            ConfigError: the number of shares is wrong, a set with a share is smaller than a pool, no set
            contributes a pool.
        """
        shares = self._shares(num_rows)
        for share, pools, rows, name in zip(shares, num_pools, num_rows, names, strict=True):
            if share > 0 and pools == 0:
                hint = "lower train.batch_size or the number of processes"
                if len(names) > 1:
                    hint += ", or set train.sampling.mixed=true"
                raise ConfigError(
                    f"{name}: {rows:,} rows do not fill a single pool, which is a batch of every process;"
                    f" {hint}"
                )
        if self.weights is None and self.temperature is None and not self.epoch_pools:
            rates = self.rates or [1.0] * len(num_pools)
            counts = tuple(int(pools * rate) for pools, rate in zip(num_pools, rates, strict=True))
        else:
            total = self.epoch_pools or sum(
                pools for pools, share in zip(num_pools, shares, strict=True) if share > 0
            )
            counts = largest_remainder(total, shares)
        return _checked(counts, shares, names)

    def rows_of_sets(self, num_rows: Sequence[int], pool_size: int, names: Sequence[str]) -> tuple[int, ...]:
        """Rows that each set contributes to an epoch of mixed pools; together whole pools.

        Raises:
            ConfigError: the number of shares is wrong, all rows together do not fill a pool.
        """
        shares = self._shares(num_rows)
        rates = self.rates or [1.0] * len(num_rows)
        rows = sum(
            count * rate for count, rate, share in zip(num_rows, rates, shares, strict=True) if share > 0
        )
        return _checked(
            largest_remainder((self.epoch_pools or int(rows) // pool_size) * pool_size, shares), shares, names
        )

    def _shares(self, num_rows: Sequence[int]) -> np.ndarray:
        """Shares of the sets, summing to 1."""
        if self.rates is not None and len(self.rates) != len(num_rows):
            raise ConfigError(
                f"train_sampling_rates has {len(self.rates)} values for {len(num_rows)} train_datasets; give"
                " one for each"
            )
        rows = np.array(num_rows, dtype=np.float64)
        if self.weights is not None:
            shares = np.array(self.weights, dtype=np.float64)
        elif self.temperature is not None:
            shares = (rows / max(rows.max(), 1)) ** (1 / self.temperature)
        else:
            shares = rows * np.array(self.rates or [1.0] * len(rows))
        return shares / (shares.sum() or 1)


def largest_remainder(total: int, shares: np.ndarray) -> tuple[int, ...]:
    """Whole numbers in proportion to ``shares`` that sum to ``total``; between equal remainders the first set
    wins."""
    exact = total * shares
    counts = np.floor(exact).astype(np.int64)
    # Remainders to 9 digits: rounding errors must not decide between equal ones.
    order = np.argsort(-np.round(exact - counts, 9), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return tuple(counts.tolist())


def _checked(counts: tuple[int, ...], shares: np.ndarray, names: Sequence[str]) -> tuple[int, ...]:
    if sum(counts) == 0:
        raise ConfigError(
            "no data set contributes a pool; raise train_sampling_rates or lower train.batch_size"
        )
    for count, share, name in zip(counts, shares, names, strict=True):
        if share > 0 and count == 0:
            logger.warning(
                "%s is left out, since its share of an epoch is less than one pool; see"
                " train.sampling.epoch_pools",
                name,
            )
    return counts
