"""Ports, ranks, devices and cores that a process finds on its machine."""

import socket
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from dpr.core.cores import quota
from dpr.core.distributed import process_group, require_ranks, resolve_device
from dpr.core.errors import ConfigError
from tests.helpers.processes import run_on_ranks


def test_a_port_that_another_run_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        environment = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        with (
            pytest.raises(ConfigError, match=f"port {port} of this machine is taken.*--master-port"),
            process_group("cpu", timeout_s=5),
        ):
            raise AssertionError("it must not start")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "node1"}, None),
        ({"RANK": "0"}, None),
        ({"RANK": "1"}, r"RANK=1 and WORLD_SIZE=\(none\), but ranks are counted from 0"),
        ({"SLURM_NTASKS": "4"}, None),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "3", "RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),  # a batch script
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "1"}, r"one of 4 tasks \(SLURM_NTASKS=4\).*torchrun"),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}, "one of 4 tasks"),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, "one of 2 tasks"),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "0"}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "but no MASTER_ADDR and no MASTER_PORT, .*torchrun"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1"}, "WORLD_SIZE=2, but no MASTER_PORT, "),
        ({"RANK": "1", "WORLD_SIZE": "1"}, "RANK=1 and WORLD_SIZE=1, but ranks are counted from 0"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0 and WORLD_SIZE=0, but ranks are counted from 0"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "b"}, "PORT='b', not a number"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE='', not a number"),
    ],
    ids=str,
)
def test_what_a_scheduler_leaves_in_the_environment_runs_or_is_refused(
    environment: dict[str, str], message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    expected = nullcontext() if message is None else pytest.raises(ConfigError, match=message)
    with expected:
        require_ranks()
        with process_group("cpu", timeout_s=5) as ranks:
            assert (ranks.rank, ranks.world_size) == (0, 1)


@pytest.mark.parametrize(
    "name", [*([] if torch.backends.mps.is_available() else ["mps"]), "xla", "meta", "cuda:9", "tpu", "gpu"]
)
def test_a_device_that_is_not_here_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^device={name}.*; use (device=)?c") as caught:
        resolve_device(name)
    assert "\n" not in str(caught.value)


def _leave_with_a_model() -> None:
    sys.setswitchinterval(10)  # a thread of gloo that wants the GIL waits until this one rests
    with process_group("cpu"):
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
        model(torch.ones(2, 3)).sum().backward()
        for _ in range(20):
            torch.distributed.broadcast(torch.zeros(3), 0)


def test_a_model_that_outlives_its_group_is_freed_without_waiting_for_gloo() -> None:
    for _ in range(2):  # half of them waited forever
        run_on_ranks(_leave_with_a_model, 2, join=False, timeout_s=10)


def test_the_gpu_of_a_rank_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    names = {(None, 1): 1, ("cuda", 1): 1, ("cuda:0", 1): 0, ("cuda:1", 0): 1}
    assert [resolve_device(name, local_rank=rank).index for name, rank in names] == list(names.values())
    assert [device.index for device in current] == list(names.values())
    for name, rank in ((None, 2), ("cuda:2", 0)):
        with pytest.raises(ConfigError, match="GPU 2 was requested, but this machine has 2"):
            resolve_device(name, local_rank=rank)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "1000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n"}, None),
        ({"cpu.max": ""}, None),
        ({"cpu.max": "100000 \u00e9"}, None),
        ({"cpu.max": "100000 0"}, None),
        ({}, None),
    ],
)
def test_a_containers_quota_is_read(files: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert quota(str(tmp_path)) == expected
