"""The helper that the multi-process tests stand on must itself be able to fail."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from tests.helpers.processes import RankFailed, run_on_ranks


def _sum_of_ranks(offset: int) -> tuple[int, torch.Tensor]:
    value = torch.tensor(float(dist.get_rank() + offset))
    dist.all_reduce(value)
    return dist.get_rank(), value


def _fail_on_rank_one() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("broken on purpose")
    time.sleep(60)


def _die_on_rank_zero() -> None:
    if os.environ["RANK"] == "0":
        os._exit(7)
    time.sleep(60)


def test_ranks_form_a_group_and_results_come_back_in_rank_order() -> None:
    assert run_on_ranks(_sum_of_ranks, 2, 10) == [(0, torch.tensor(21.0)), (1, torch.tensor(21.0))]


def test_one_rank_runs_without_a_group() -> None:
    assert run_on_ranks(dist.is_initialized, 1) == [False]


def test_the_first_error_is_raised_with_its_rank_and_the_others_are_ended() -> None:
    with pytest.raises(RankFailed, match=r"(?s)rank 1 of 2 raised.*broken on purpose"):
        run_on_ranks(_fail_on_rank_one, 2, join=False)


def test_a_dead_rank_is_reported() -> None:
    with pytest.raises(RankFailed, match="rank 0 of 2 died with exit code 7"):
        run_on_ranks(_die_on_rank_zero, 2, join=False)


def test_a_hanging_rank_is_reported() -> None:
    with pytest.raises(RankFailed, match="did not finish within"):
        run_on_ranks(time.sleep, 2, 60, join=False, timeout_s=0.3)
