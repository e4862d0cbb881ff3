"""What conftest.py promises to every test."""

import os
import socket
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from tests.architecture.source_files import REPOSITORY
from tests.helpers import slow_tests
from tests.helpers.processes import RankFailed, run_on_ranks


def _refused() -> bool:
    """192.0.2.0/24 is reserved for documentation: nothing would answer even if the guard failed."""
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=0.1)
    except OSError as error:
        return "may not use the network" in str(error)
    return False


def test_connections_to_other_machines_are_refused_in_forks_too_and_loopback_works() -> None:
    assert _refused() and run_on_ranks(_refused, 2, join=False) == [True, True]
    with socket.socket() as other, pytest.raises(OSError, match="may not use the network"):
        other.connect_ex(("192.0.2.1", 80))
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        pytest.raises(OSError, match="may not use the network"),
    ):
        sender.sendto(b"x", ("192.0.2.1", 53))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=5),
    ):
        pass


def test_processes_of_processes_that_tests_start_are_refused_too() -> None:
    code = "from tests.helpers.test_conftest import _refused; assert _refused()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    environment = os.environ | {
        "HF_HUB_OFFLINE": "0",
        "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{REPOSITORY}",
    }
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize("_time", [1, 2])
def test_torch_is_handed_on_as_it_was_found(_time: int) -> None:
    assert torch.get_default_dtype() == torch.float32
    torch.set_default_dtype(torch.float64)


def test_what_is_listed_as_slow_is_a_test() -> None:
    for node in slow_tests.FILE.read_text().split():
        file, _, name = node.partition("::")
        assert f"def {name}(" in (REPOSITORY / file).read_text(), node
    assert slow_tests.is_slow("tests/cli/test_main.py::test_x[1]")
    assert not slow_tests.is_slow("tests/unit/test_new.py::test_x")


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
