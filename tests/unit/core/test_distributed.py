from __future__ import annotations

import socket

import pytest

from dpr.core.distributed import process_group
from dpr.core.errors import ConfigError


def test_a_port_that_another_run_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, str(value))
        with pytest.raises(ConfigError, match=f"port {port} of this machine is taken.*--master-port"), process_group("cpu", timeout_s=5):
            raise AssertionError("it must not start")
