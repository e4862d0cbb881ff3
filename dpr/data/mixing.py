"""How several train sets share the pools of an epoch: how many each gives. Counts are exact and the same in every epoch.

With N_i the rows of set i and Q the questions of a pool, set i has the share p_i of an epoch:

    rates        p_i proportional to rate_i N_i       (no rates: 1)
    weights      p_i proportional to weight_i
    temperature  p_i proportional to N_i ^ (1/T)      (T = 1: as many as there are, a large T: all sets alike)

An epoch's P pools are divided by the largest remainder: every set gets its share rounded down, what is left goes to the sets that were
rounded down most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger

logger = get_logger(__name__)

# Settings that each say how large the sets' shares are; at most one of them can be given.
_SHARES = {"rates": "train_sampling_rates", "weights": "train.sampling.weights", "temperature": "train.sampling.temperature"}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which rows make up the pools of an epoch.

    ``rates`` multiply what each set gives in an epoch; ``weights`` or ``temperature`` (T above) say the sets' shares of one instead. An
    epoch then has ``epoch_pools`` pools; 0: as many as the sets have together. With ``mixed`` a pool holds rows of all sets, else of one.
    ``group_by_length`` makes pools of rows of like length.
    """

    rates: Sequence[float] | None = None
    weights: Sequence[float] | None = None
    temperature: float | None = None
    epoch_pools: int = 0
    mixed: bool = False
    group_by_length: bool = False

    def __post_init__(self) -> None:
        given = [key for name, key in _SHARES.items() if getattr(self, name) is not None]
        given += ["train.sampling.epoch_pools"] if self.epoch_pools and self.rates is not None else []
        if len(given) > 1:
            raise ConfigError(f"{given[0]} and {given[1]} contradict, both say what a set gives; leave one of them out")
        for name in ("rates", "weights"):
            values = getattr(self, name)
            if values is not None and (min(values, default=0) < 0 or not any(values)):
                raise ConfigError(f"{_SHARES[name]}={list(values)}: expected numbers of at least 0, one of them above")
        if self.temperature is not None and not 0 < self.temperature < float("inf"):
            raise ConfigError(f"train.sampling.temperature={self.temperature} is out of range; it must be above 0")

    @property
    def shares_setting(self) -> str | None:
        """The setting that says the sets' shares, if one does."""
        return next((key for name, key in _SHARES.items() if getattr(self, name) is not None), None)

    def refuse_local_shards(self) -> None:
        """Raises ConfigError where pools are made of rows from anywhere, which a rank with a part of its own does not have."""
        for name in ("mixed", "group_by_length"):
            if getattr(self, name):
                raise ConfigError(f"train.sampling.{name}=true and local_shards_dataloader=true contradict; leave one of them out")

    @property
    def is_natural(self) -> bool:
        """Whether the sets give what they have, times their rates."""
        return self.weights is None and self.temperature is None and not self.epoch_pools

    def changed(self) -> dict[str, Any]:
        """What is not as it is by default, by the names of the settings; rates are left out."""
        default = asdict(Sampling())
        return {f"train.sampling.{name}": value for name, value in asdict(self).items() if name != "rates" and value != default[name]}

    def pools_of_sets(self, num_rows: Sequence[int], num_pools: Sequence[int], names: Sequence[str]) -> tuple[int, ...]:
        """Pools that each set gives in an epoch where a pool is of one set; ``num_pools`` are those of one lap.

        Raises:
            ConfigError: not one share for each set, a set with a share is smaller than a pool, no set gives a pool.
        """
        shares = self._shares(num_rows)
        for share, pools, name in zip(shares, num_pools, names, strict=True):
            if share > 0 and pools == 0:
                raise ConfigError(
                    f"{name} has too few rows for a single pool; lower train.batch_size or the number of processes, "
                    "or set train.sampling.mixed=true"
                )
        if self.is_natural:
            rates = self.rates or [1.0] * len(num_pools)
            counts = tuple(int(pools * rate) for pools, rate in zip(num_pools, rates, strict=True))
        else:
            total = self.epoch_pools or sum(pools for pools, share in zip(num_pools, shares, strict=True) if share > 0)
            counts = largest_remainder(total, shares)
        return _checked(counts, shares, names)

    def rows_of_sets(self, num_rows: Sequence[int], pool_size: int, names: Sequence[str]) -> tuple[int, ...]:
        """Rows that each set gives in an epoch of mixed pools; together whole pools.

        Raises:
            ConfigError: not one share for each set, all rows together do not fill a pool.
        """
        shares = self._shares(num_rows)
        rates = self.rates or [1.0] * len(num_rows)
        rows = sum(count * rate for count, rate, share in zip(num_rows, rates, shares, strict=True) if share > 0)
        return _checked(largest_remainder((self.epoch_pools or int(rows) // pool_size) * pool_size, shares), shares, names)

    def _shares(self, num_rows: Sequence[int]) -> np.ndarray:
        """Shares of the sets, summing to 1."""
        for name in ("rates", "weights"):
            values = getattr(self, name)
            if values is not None and len(values) != len(num_rows):
                raise ConfigError(f"{_SHARES[name]} has {len(values)} values for {len(num_rows)} train_datasets; give one for each")
        rows = np.array(num_rows, dtype=np.float64)
        if self.weights is not None:
            shares = np.array(self.weights, dtype=np.float64)
        elif self.temperature is not None:
            shares = (rows / max(rows.max(), 1)) ** (1 / self.temperature)
        else:
            shares = rows * np.array(self.rates or [1.0] * len(rows))
        return shares / (shares.sum() or 1)


def largest_remainder(total: int, shares: np.ndarray) -> tuple[int, ...]:
    """Whole numbers in proportion to ``shares`` that sum to ``total``; between equal remainders the first set wins."""
    exact = total * shares
    counts = np.floor(exact).astype(np.int64)
    # Remainders to 9 digits: what floating point adds to equal ones must not decide.
    order = np.argsort(-np.round(exact - counts, 9), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return tuple(counts.tolist())


def _checked(counts: tuple[int, ...], shares: np.ndarray, names: Sequence[str]) -> tuple[int, ...]:
    if sum(counts) == 0:
        raise ConfigError("no data set contributes a pool; raise train_sampling_rates or lower train.batch_size")
    for count, share, name in zip(counts, shares, names, strict=True):
        if share > 0 and count == 0:
            logger.warning("%s takes no part, since its share of an epoch is less than one pool; see train.sampling.epoch_pools", name)
    return counts
