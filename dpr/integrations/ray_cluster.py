"""Work on the machines of a Ray cluster: a task is one call of a function there, and is done again elsewhere
if its worker is lost.

Functions, tasks and results are small: names and numbers. Whatever is large is read from and written to files
that all machines share, so that nothing is kept in Ray's object store, a result does not depend on who made
it, and what one worker finished helps the next.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch

from dpr.core.compute_settings import ClusterSettings
from dpr.core.errors import ConfigError, DprError, InputError, LostRankError, StopRequested, first_line
from dpr.core.lazy import require
from dpr.core.logs import configure_logging, get_logger
from dpr.core.machine import launched
from dpr.core.version import __version__
from dpr.storage.durable import writing
from dpr.storage.leftovers import remove, remove_leftovers, temporary_beside

logger = get_logger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")
_STORE_BYTES = 80_000_000  # the smallest that Ray accepts: nothing of ours goes there
_ENDING = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
_LOOK_S, _SILENT_S = 10.0, 40.0  # without its head, Ray ends this process after 60
_RETRIES = 10
_KEPT = "rerun the same command, which keeps what is finished"


@dataclass(frozen=True)
class _Home:
    """What a worker must have in common with the process that gives it work."""

    folder: str
    mark: Path
    versions: tuple[str, str]
    threads: int
    has_gpu: bool

    def enter(self) -> None:
        """Prepares this worker.

        Raises:
            ConfigError: other versions are installed here.
            InputError: the working directory or the output's folder is not there, or another one has its
            name.
        """
        if not self.has_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves it as it is
        host = os.uname().nodename if hasattr(os, "uname") else "a machine"
        if self.versions != _versions():
            found, expected = (
                "dpr {} and torch {}".format(*versions) for versions in (_versions(), self.versions)
            )
            raise ConfigError(
                f"{host} of the cluster has {found}, this command {expected}; install the same on all its"
                " machines"
            )
        if not Path(self.folder).is_dir():
            hint = "start the command in a folder that all machines share"
            raise InputError(f"is not a folder on {host} of the cluster", file=self.folder, hint=hint)
        if not self.mark.is_file():
            hint = "write to a folder that all machines share"
            raise InputError(
                f"is another folder, or none, on {host} of the cluster", file=self.mark.parent, hint=hint
            )
        os.chdir(self.folder)
        configure_logging()
        torch.set_num_threads(self.threads)


def share_out(
    settings: ClusterSettings,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    what: str,
    folder: Path,
    device: str | None = None,
) -> Iterator[tuple[Task, Result]]:
    """Calls ``function`` for each task on the cluster, and yields each with its result when it is done, in
    any order.

    A task must do no harm if it is done twice, even at the same time: a machine that was given up may still
    work.

    Args:
        function: defined at the top of a module, so that workers find it by its name.
        what: the name of the work, for Ray's messages.
        folder: where the tasks write; every worker looks whether it is the same one for it.
        device: the setting: workers get no GPU where it is cpu.

    Raises:
        ConfigError: Ray is not installed or there is no such cluster, a device with a number, workers with
        other versions, torchrun.
        OutputError: nothing can be written to ``folder``.
        StopRequested: SIGTERM or SIGHUP; what was started here has ended.
        DprError: what a task raised; the others are given up.
        LostRankError: the workers of one task were lost again and again, the head has gone, or Ray did not
        start.
    """
    if launched("WORLD_SIZE") > 1:
        raise ConfigError(
            "cluster=ray and torchrun are mutually exclusive; start the command without torchrun"
        )
    if device not in (None, "cpu", "cuda"):
        raise ConfigError(
            f"device={device} and cluster=ray are mutually exclusive; each worker gets GPUs of its own,"
            " cluster.gpus=1"
        )
    if not tasks:
        return
    with _marked(folder) as mark, _connected(settings) as ray:
        gpus = _gpus(ray, settings, device)
        home = _Home(os.getcwd(), mark, _versions(), settings.cpus, gpus > 0)
        room = {"num_cpus": settings.cpus, "num_gpus": gpus}
        remote = ray.remote(max_retries=_RETRIES, scheduling_strategy="SPREAD", name=what, **room)(_do)
        waiting = list(reversed(tasks))
        running: dict[Any, Task] = {}
        head = Head(ray.get_runtime_context().gcs_address)
        while waiting or running:
            while waiting and len(running) < (settings.workers or len(tasks)):
                task = waiting.pop()
                running[remote.remote(home, function, task)] = task
            done, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_S)
            head.look()
            for reference in done:
                yield running.pop(reference), _result(ray, reference)


class Head:
    """The process that a cluster cannot do without, at ``address``."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._looked = self._heard = time.monotonic()

    def look(self) -> None:
        """Asks now and then whether it is there.

        Raises:
            LostRankError: it has not been there for a while.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        try:
            _knock(self._address)
            self._heard = now
        except OSError as error:
            if now - self._heard > _SILENT_S:
                raise LostRankError(
                    f"the cluster's head at {self._address} has gone ({error.strerror or error}); {_KEPT}"
                ) from None


def _knock(address: str) -> None:
    """Raises OSError where nothing answers at host:port."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_LOOK_S).close()


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
        again = f"{_KEPT}; a task was repeated {_RETRIES} times"
        raise LostRankError(f"workers of the cluster were lost ({first_line(error)}); {again}") from None


def _versions() -> tuple[str, str]:
    return __version__, torch.__version__


def _gpus(ray: ModuleType, settings: ClusterSettings, device: str | None) -> float:
    """GPUs of a worker. Warns where no machine has room for one."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = max((node.get("GPU", 0) for node in nodes), default=0)
    gpus = settings.gpus if settings.gpus is not None else float(most > 0)
    gpus = 0.0 if device == "cpu" else gpus
    if not any(node.get("CPU", 0) >= settings.cpus and node.get("GPU", 0) >= gpus for node in nodes):
        message = (
            "no machine of the cluster has %d CPUs and %g GPUs for a worker; the work waits until one joins"
        )
        logger.warning(message, settings.cpus, gpus)
    return gpus


@contextmanager
def _marked(folder: Path) -> Iterator[Path]:
    """A file in a folder for as long as the block lasts, by which others recognise the folder."""
    mark = temporary_beside(folder.absolute() / "cluster")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        mark.touch(exist_ok=False)
    try:
        yield mark
    finally:
        remove(mark)


@contextmanager
def _connected(settings: ClusterSettings) -> Iterator[ModuleType]:
    """A block in which this process is the driver of a cluster, which ends with the block if it was started
    here."""
    # read when it is imported, and by what it starts: it would send statistics
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # likewise: it would look 20 times, 40 s each, for a cluster that has gone
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    ray = require("ray", extra="ray", purpose="cluster=ray")
    address = settings.address or os.environ.get("RAY_ADDRESS") or "local"
    cores = max(os.cpu_count() or 1, settings.workers * settings.cpus)
    own = (
        {"num_cpus": cores, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
        if address == "local"
        else {}
    )
    before = {number: signal.getsignal(number) for number in _ENDING}
    ended: list[signal.Signals] = []

    def end(number: int, frame: object) -> None:
        ended.append(signal.Signals(number))
        sys.exit(128 + number)

    try:
        with _signals_noted() as noted:
            _start_or_join(ray, address, own)
        for number in _ENDING:
            if before[number] != signal.SIG_IGN:  # as nohup leaves it
                signal.signal(number, end)
        if signal.SIGTERM in noted:
            end(signal.SIGTERM, None)
        yield ray
    except SystemExit:  # whose code Ray changes
        number = ended[0] if ended else signal.SIGTERM
        raise StopRequested(f"by {number.name}; {_KEPT}", exit_code=128 + number) from None
    finally:
        ray.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """A list that, after the block, holds the signals that came, whatever their handlers did: one of Ray's
    may raise where nobody hears."""
    noted: list[int] = []
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        yield noted
    finally:
        signal.set_wakeup_fd(before)
        with suppress(BlockingIOError):
            noted += os.read(reader, 512)
        os.close(reader)
        os.close(writer)


def _start_or_join(ray: ModuleType, address: str, own: Mapping[str, Any]) -> None:
    """Connects to the cluster, which is started on this machine if ``own`` has settings for it."""
    hint = "give the head's host:port as cluster.address, or leave it out for a cluster of this machine"
    if ":" in address:
        try:
            _knock(address)  # Ray would go on trying
        except (OSError, OverflowError, ValueError) as error:
            raise ConfigError(
                f"no Ray cluster at {address} ({getattr(error, 'strerror', None) or error}); {hint}"
            ) from error
        hint += "; a cluster with tokens needs RAY_AUTH_MODE=token"
    try:
        ray.init(address=address, logging_level=logging.ERROR, **own)
    except Exception as error:  # of many classes, among them Exception itself
        reason = " ".join(str(error).split())[:300]
        if own:
            raise LostRankError(
                f"Ray could not be started on this machine ({reason}); rerun the same command"
            ) from error
        if "ersion mismatch" in reason:
            hint = "install the same Python and Ray on all its machines"
            raise ConfigError(f"the cluster at {address} cannot be used ({reason}); {hint}") from error
        raise ConfigError(f"no Ray cluster at {address} ({reason}); {hint}") from error
