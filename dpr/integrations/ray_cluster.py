"""Work on the machines of a Ray cluster. A task is one call of a function there, and is done again elsewhere
if its worker is lost.

Tasks read corpora and models from files that all machines share, and write their results there. So a result
does not depend on the machine that made it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import torch

from dpr.core.compute_settings import ClusterSettings
from dpr.core.errors import ConfigError, DprError, InputError, LostRankError, StopRequested, first_line
from dpr.core.logs import configure_logging, get_logger
from dpr.core.machine import launched, require
from dpr.core.version import __version__
from dpr.storage.durable import writing
from dpr.storage.leftovers import remove, remove_leftovers, temporary_beside

logger = get_logger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")
_RETRIES = 10
_STORE_BYTES = 200_000_000  # Ray would take a third of the memory
_KEPT = "rerun the same command, which keeps what is finished"


class _Work(NamedTuple):
    """A function, and what a worker must have in common with the process that sends the work."""

    function: Callable[[Any], Any]
    folder: str
    mark: Path
    versions: str
    has_gpu: bool


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
        folder: folder that the tasks write to; every worker checks that it sees the same one.
        device: the setting. With cpu, workers get no GPU.

    Raises:
        ConfigError: Ray is not installed or there is no such cluster, a device with a number, workers with
        other versions, or torchrun.
        OutputError: nothing can be written to ``folder``.
        StopRequested: SIGTERM was received; everything started here has ended.
        DprError: a task raised it; the other tasks are given up.
        LostRankError: the workers of one task were lost again and again.
    """
    if launched("WORLD_SIZE") > 1:
        raise ConfigError(
            "cluster=ray and torchrun are mutually exclusive; start the command without torchrun"
        )
    if device not in (None, "cpu", "cuda"):
        raise ConfigError(
            f"device={device} and cluster=ray are mutually exclusive; each worker gets a GPU of its own"
        )
    if not tasks:
        return
    with _marked(folder) as mark, _connected(settings) as ray:
        # GPUs of a worker: one if a machine of the cluster has any.
        gpus = 0
        if device != "cpu":
            gpus = int(any(node["Alive"] and node["Resources"].get("GPU", 0) for node in ray.nodes()))
        work = ray.put(_Work(function, os.getcwd(), mark, _versions(), gpus > 0))
        remote = ray.remote(
            max_retries=_RETRIES,
            scheduling_strategy="SPREAD",
            name=what,
            num_cpus=1,
            num_gpus=gpus,
        )(_do)
        waiting = list(reversed(tasks))
        running: dict[Any, Task] = {}
        while waiting or running:
            while waiting and len(running) < (settings.workers or len(tasks)):
                task = waiting.pop()
                running[remote.remote(work, task)] = task
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                task = running.pop(reference)
                try:
                    result = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, DprError | OSError):
                        raise error.cause from None
                    raise  # with the worker's traceback
                except ray.exceptions.RayError as error:
                    raise LostRankError(
                        f"workers of the cluster were lost ({first_line(error)}); {_KEPT}; a task was repeated"
                        f" {_RETRIES} times"
                    ) from None
                yield task, result


def _do(work: _Work, task: Any) -> Any:
    """Prepares this worker and does a task.

    Raises:
        ConfigError: other versions are installed here.
        InputError: the working directory or the output's folder is missing, or another folder has its name.
    """
    if not work.has_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves it as it is
    host = socket.gethostname()
    if work.versions != _versions():
        raise ConfigError(
            f"{host} of the cluster has {_versions()}, this command {work.versions}; install the same on all its"
            " machines"
        )
    if not Path(work.folder).is_dir():
        raise InputError(
            f"is not a folder on {host} of the cluster",
            file=work.folder,
            hint="start the command in a folder that all machines share",
        )
    if not work.mark.is_file():
        raise InputError(
            f"is another folder, or none, on {host} of the cluster",
            file=work.mark.parent,
            hint="write to a folder that all machines share",
        )
    os.chdir(work.folder)
    configure_logging()
    torch.set_num_threads(1)
    return work.function(task)


def _versions() -> str:
    return f"dpr {__version__} and torch {torch.__version__}"


@contextmanager
def _marked(folder: Path) -> Iterator[Path]:
    """Keeps a file in a folder for as long as the block lasts, by which others recognise the folder."""
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
    """Makes this process the driver of a cluster inside the block. A cluster that was started here ends with
    the block."""
    # read by Ray at import, and by its processes; otherwise it sends statistics
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # likewise; otherwise it looks 20 times, 40 s each, for a cluster that has gone
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    ray = require("ray", extra="ray", purpose="cluster=ray")
    before = signal.getsignal(signal.SIGTERM)

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    address = settings.address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {}
    try:
        try:
            if address == "local":
                options = {
                    "num_cpus": max(os.cpu_count() or 1, settings.workers),
                    "object_store_memory": _STORE_BYTES,
                    "include_dashboard": False,
                }
            elif ":" in address:  # Ray would go on trying
                host, _, port = address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            ray.init(address=address, logging_level=logging.ERROR, **options)
        except Exception as error:  # of many classes, among them Exception itself
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(
                f"no Ray cluster at {address} ({reason}); give the head's host:port as cluster.address, or"
                " leave it out for a cluster of this machine. All machines need the same Python and Ray, a"
                " cluster with tokens RAY_AUTH_MODE=token"
            ) from error
        signal.signal(signal.SIGTERM, end)
        yield ray
    except SystemExit:  # Ray changes its code
        raise StopRequested(f"by SIGTERM; {_KEPT}", exit_code=128 + signal.SIGTERM) from None
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, before)
