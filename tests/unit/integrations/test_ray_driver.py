"""How a command on a cluster ends, with a stand-in for Ray that works in this process."""

import os
import signal
import socket
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpr.core.compute_settings import ClusterSettings
from dpr.core.errors import ConfigError, InputError, StopRequested
from dpr.integrations.ray_cluster import share_out


class StandIn(types.ModuleType):
    """``before`` happens in a worker before its task, ``starting`` while Ray starts."""

    def __init__(
        self, *, before: Callable[[], None] = lambda: None, starting: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__("ray")
        self.before, self.starting, self.is_connected, self.most = before, starting, False, 0
        self.exceptions = types.SimpleNamespace(
            RayTaskError=type("RayTaskError", (Exception,), {}), RayError=OSError
        )

    def init(self, **_: Any) -> None:
        self.is_connected = True
        self.starting()

    def shutdown(self) -> None:
        self.is_connected = False

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 2}}]

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **_: Any) -> Callable[[Callable[..., Any]], types.SimpleNamespace]:
        return lambda function: types.SimpleNamespace(remote=lambda *given: (function, given))

    def wait(self, running: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(running))
        return running[-1:], running[:-1]

    def get(self, reference: Any) -> Any:
        function, given = reference
        self.before()
        return function(*given)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_NUM_REDIS_GET_RETRIES"):
        monkeypatch.setenv(name, "1")


def shared(
    monkeypatch: pytest.MonkeyPatch, ray: StandIn, folder: Path, address: str | None = None
) -> list[tuple[int, int]]:
    monkeypatch.setitem(sys.modules, "ray", ray)
    settings = ClusterSettings(kind="ray", workers=2, address=address)
    return list(share_out(settings, abs, [-1, -2, -3, -4], what="counting", folder=folder / "out"))


def test_every_task_is_done_once_and_no_more_at_a_time_than_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = StandIn()
    assert sorted(shared(monkeypatch, ray, tmp_path)) == [(-4, 4), (-3, 3), (-2, 2), (-1, 1)]
    assert ray.most == 2
    assert not ray.is_connected
    assert not list((tmp_path / "out").iterdir()), "nothing is left in the folder"


def test_a_machine_with_another_folder_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def remote() -> None:
        for mark in (tmp_path / "out").iterdir():
            mark.unlink()

    with pytest.raises(
        InputError, match=r"out: is another folder, or none, on .* of the cluster; write to a folder that all"
    ):
        shared(monkeypatch, StandIn(before=remote), tmp_path)


def with_another_code() -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except SystemExit:
        sys.exit(1)


def test_sigterm_ends_it_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray, before = StandIn(before=with_another_code), signal.getsignal(signal.SIGTERM)
    with pytest.raises(StopRequested, match="by SIGTERM; rerun the same command") as caught:
        shared(monkeypatch, ray, tmp_path)
    assert caught.value.exit_code == 143
    assert not ray.is_connected
    assert signal.getsignal(signal.SIGTERM) == before


def mismatch() -> None:
    raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.10.2")


@pytest.mark.parametrize(
    ("starting", "message"),
    [
        (lambda: None, "no Ray cluster at 127.0.0.1:{closed} .*Connection refused.*give the head's"),
        (mismatch, "Ray: 2.50.0 Python: 3.10.2.*same Python and Ray"),
    ],
    ids=["closed", "versions"],
)
def test_a_cluster_that_cannot_be_used_is_one_sentence(
    starting: Callable[[], None], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if "{closed}" in message:
            server.close()
        with pytest.raises(ConfigError, match=message.format(closed=port)) as caught:
            shared(monkeypatch, StandIn(starting=starting), tmp_path, f"127.0.0.1:{port}")
    assert "\n" not in str(caught.value)
