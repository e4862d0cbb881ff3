"""Work on the machines of a Ray cluster: a task is one call of a function there, and is done again elsewhere if its worker is lost.

Functions, tasks and results are small: names and numbers. Whatever is large is read from and written to files that all machines share, so
that nothing is kept in Ray's object store, a result does not depend on who made it, and what one worker finished helps the next.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch

import dpr
from dpr.core.cluster_settings import ClusterSettings
from dpr.core.errors import ConfigError, DprError, InputError, LostRankError, first_line
from dpr.core.lazy import require
from dpr.core.logs import configure_logging, get_logger

logger = get_logger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")
_STORE_BYTES = 80_000_000  # the smallest that Ray accepts: nothing of ours goes there


@dataclass(frozen=True)
class _Home:
    """What a worker must have in common with the process that gives it work."""

    folder: str
    versions: tuple[str, str]
    threads: int
    has_gpu: bool

    def enter(self) -> None:
        """Prepares this worker.

        Raises:
            ConfigError: other versions are installed here.
            InputError: the working directory is not there.
        """
        if not self.has_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves it as it is
        host = os.uname().nodename if hasattr(os, "uname") else "a machine"
        if self.versions != _versions():
            found, expected = ("dpr {} and torch {}".format(*versions) for versions in (_versions(), self.versions))
            raise ConfigError(f"{host} of the cluster has {found}, this command {expected}; install the same on all its machines")
        if not Path(self.folder).is_dir():
            hint = "start the command in a folder that all machines share"
            raise InputError(f"is not a folder on {host} of the cluster", file=self.folder, hint=hint)
        os.chdir(self.folder)
        configure_logging()
        torch.set_num_threads(self.threads)


def share_out(
    settings: ClusterSettings,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    what: str,
    device: str | None = None,
) -> Iterator[tuple[Task, Result]]:
    """Calls ``function`` for each task on the cluster, and yields each with its result when it is done, in any order.

    A task must do no harm if it is done twice, even at the same time: a machine that was given up may still work.

    Args:
        function: defined at the top of a module, so that workers find it by its name.
        what: the name of the work, for Ray's messages.
        device: the setting: workers get no GPU where it is cpu.

    Raises:
        ConfigError: Ray is not installed or there is no such cluster, a device with a number, workers with other versions, torchrun.
        DprError: what a task raised; the others are given up.
        LostRankError: the workers of one task were lost again and again, or Ray did not start.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("cluster=ray and torchrun are mutually exclusive; start the command without torchrun")
    if device not in (None, "cpu", "cuda"):
        raise ConfigError(f"device={device} and cluster=ray are mutually exclusive; each worker gets GPUs of its own, cluster.gpus=1")
    if not tasks:
        return
    with _connected(settings) as ray:
        gpus = _gpus(ray, settings, device)
        home = _Home(os.getcwd(), _versions(), settings.cpus, gpus > 0)
        room = {"num_cpus": settings.cpus, "num_gpus": gpus}
        remote = ray.remote(max_retries=settings.retries, scheduling_strategy="SPREAD", name=what, **room)(_do)
        waiting = list(reversed(tasks))
        running: dict[Any, Task] = {}
        while waiting or running:
            while waiting and len(running) < (settings.workers or len(tasks)):
                task = waiting.pop()
                running[remote.remote(home, function, task)] = task
            (done, *_), _ = ray.wait(list(running), num_returns=1)
            yield running.pop(done), _result(ray, done)


def _do(home: _Home, function: Callable[[Task], Result], task: Task) -> Result:
    home.enter()
    return function(task)


def _result(ray: ModuleType, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, DprError | OSError):
            raise error.cause from None
        raise  # with the worker's traceback
    except ray.exceptions.RayError as error:
        again = "rerun the same command, which keeps what is finished; cluster.retries sets how often a task is repeated"
        raise LostRankError(f"workers of the cluster were lost ({first_line(error)}); {again}") from None


def _versions() -> tuple[str, str]:
    return dpr.__version__, torch.__version__


def _gpus(ray: ModuleType, settings: ClusterSettings, device: str | None) -> float:
    """GPUs of a worker. Warns where no machine has room for one."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = max((node.get("GPU", 0) for node in nodes), default=0)
    gpus = settings.gpus if settings.gpus is not None else float(most > 0)
    gpus = 0.0 if device == "cpu" else gpus
    if not any(node.get("CPU", 0) >= settings.cpus and node.get("GPU", 0) >= gpus for node in nodes):
        found = "no machine of the cluster has %d CPUs and %g GPUs for a worker; the work waits until one joins"
        logger.warning(found, settings.cpus, gpus)
    return gpus


@contextmanager
def _connected(settings: ClusterSettings) -> Iterator[ModuleType]:
    """A block in which this process is the driver of a cluster, which ends with the block if it was started here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when it is imported, and by what it starts: it would send statistics
    ray = require("ray", extra="ray", purpose="cluster=ray")
    address = settings.address or os.environ.get("RAY_ADDRESS") or "local"
    cores = max(os.cpu_count() or 1, settings.workers * settings.cpus)
    own = {"num_cpus": cores, "object_store_memory": _STORE_BYTES, "include_dashboard": False} if address == "local" else {}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, logging_level=logging.ERROR, **own)
    except Exception as error:  # of many classes, among them Exception itself
        ray.shutdown()
        if own:
            raise LostRankError(f"Ray could not be started on this machine ({first_line(error)}); rerun the same command") from error
        hint = "give the head's host:port as cluster.address, or leave it out for a cluster of this machine"
        raise ConfigError(f"no Ray cluster at {address} ({first_line(error)}); {hint}") from error
    try:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # Ray's own exits with 15
        yield ray
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, before)
