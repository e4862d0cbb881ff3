"""What conftest.py promises to every test."""

from __future__ import annotations

import os
import socket

import pytest
import torch


def test_connections_to_other_machines_are_refused() -> None:
    # 192.0.2.0/24 is reserved for documentation: nothing would answer even if the guard failed.
    with pytest.raises(OSError, match="may not use the network"):
        socket.create_connection(("192.0.2.1", 80), timeout=0.1)
    with socket.socket() as other, pytest.raises(OSError, match="may not use the network"):
        other.connect_ex(("192.0.2.1", 80))


def test_loopback_works() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
        pass


def test_hugging_face_is_offline() -> None:
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("_time", [1, 2])
def test_torch_is_handed_on_as_it_was_found(_time: int) -> None:
    assert torch.get_default_dtype() == torch.float32
    torch.set_default_dtype(torch.float64)
