"""What conftest.py promises to every test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers import slow_tests
from tests.helpers.processes import run_on_ranks


def test_connections_to_other_machines_are_refused() -> None:
    # 192.0.2.0/24 is reserved for documentation: nothing would answer even if the guard failed.
    with pytest.raises(OSError, match="may not use the network"):
        socket.create_connection(("192.0.2.1", 80), timeout=0.1)
    with socket.socket() as other, pytest.raises(OSError, match="may not use the network"):
        other.connect_ex(("192.0.2.1", 80))


def test_processes_that_tests_start_are_refused_too() -> None:
    code = (
        "import socket\ntry: socket.create_connection(('192.0.2.1', 80), timeout=0.1)\nexcept OSError as"
        " error: print(error)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "0"}
    for command in (
        [sys.executable, "-c", code],
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"],
    ):
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert "may not use the network" in result.stdout
    assert run_on_ranks(_try_to_connect, 2, join=False) == [True, True]


def _try_to_connect() -> bool:
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=0.1)
    except OSError as error:
        return "may not use the network" in str(error)
    return False


def test_datagrams_are_refused() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        pytest.raises(OSError, match="may not use the network"),
    ):
        sender.sendto(b"x", ("192.0.2.1", 53))


def test_loopback_works() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=5),
    ):
        pass


def test_hugging_face_is_offline() -> None:
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("_time", [1, 2])
def test_torch_is_handed_on_as_it_was_found(_time: int) -> None:
    assert torch.get_default_dtype() == torch.float32
    torch.set_default_dtype(torch.float64)


def test_what_is_listed_as_slow_is_a_test() -> None:
    for node in slow_tests.FILE.read_text().split():
        file, _, name = node.partition("::")
        assert f"def {name}(" in (Path(slow_tests.FILE).parents[1] / file).read_text(), node
    assert slow_tests.is_slow("tests/cli/test_main.py::test_x[1]")
    assert not slow_tests.is_slow("tests/unit/test_new.py::test_x")
