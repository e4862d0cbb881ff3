"""The helper that the multi-process tests stand on must itself be able to fail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
import torch.distributed as dist

from tests.helpers.processes import RankFailed, run_on_ranks


def _fail_on_rank_one() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("broken on purpose")
    _hang()


def _hang() -> None:
    time.sleep(60)


def _die_on_rank_zero() -> None:
    if os.environ["RANK"] == "0":
        os._exit(7)
    _hang()


def test_results_come_back_in_rank_order() -> None:
    assert run_on_ranks(dist.get_rank, 2) == [0, 1]
    assert run_on_ranks(dist.is_initialized, 1) == [False]


@pytest.mark.parametrize(
    ("fails", "timeout_s", "message"),
    [
        (_fail_on_rank_one, 60.0, r"(?s)rank 1 of 2 raised.*broken on purpose"),
        (_die_on_rank_zero, 60.0, "rank 0 of 2 died with exit code 7"),
        (_hang, 0.3, "did not finish within"),
    ],
)
def test_a_rank_that_fails_dies_or_hangs_is_named(
    fails: Callable[[], None], timeout_s: float, message: str
) -> None:
    with pytest.raises(RankFailed, match=message):
        run_on_ranks(fails, 2, join=False, timeout_s=timeout_s)
