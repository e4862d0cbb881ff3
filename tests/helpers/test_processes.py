"""The helper that the multi-process tests stand on must itself be able to fail."""

import os
import time

import pytest
import torch.distributed as dist

from tests.helpers.processes import RankFailed, run_on_ranks


def _end(how: str) -> None:
    if how == "raise" and os.environ["RANK"] == "1":
        raise ValueError("broken on purpose")
    if how == "die" and os.environ["RANK"] == "0":
        os._exit(7)
    time.sleep(60)


def test_results_come_back_in_rank_order() -> None:
    assert run_on_ranks(dist.get_rank, 2) == [0, 1]
    assert run_on_ranks(dist.is_initialized, 1) == [False]


@pytest.mark.parametrize(
    ("how", "timeout_s", "message"),
    [
        ("raise", 60.0, r"(?s)rank 1 of 2 raised.*broken on purpose"),
        ("die", 60.0, "rank 0 of 2 died with exit code 7"),
        ("hang", 0.3, "did not finish within"),
    ],
)
def test_a_rank_that_fails_dies_or_hangs_is_named(how: str, timeout_s: float, message: str) -> None:
    with pytest.raises(RankFailed, match=message):
        run_on_ranks(_end, 2, how, join=False, timeout_s=timeout_s)
