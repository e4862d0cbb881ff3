"""A process that forks runs of the training script, each rank with a launcher's variables and faults of its own."""

import atexit
import contextlib
import faulthandler
import gc
import os
import resource
import runpy
import signal
import sys
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.helpers.processes import launcher_environment, run_and_exit

SCRIPT = str(Path(__file__).resolve().parents[2] / "train_dense_encoder.py")


def serve(requests: Connection) -> None:
    """Serves until it is asked for nothing; then ends what still runs."""
    import hydra  # noqa: F401

    import dpr.jobs.train  # noqa: F401

    settle()
    ended: dict[int, int] = {}
    running: set[int] = set()
    requests.send(os.getpid())
    # the end of the pipe does not come while a process forked by some other test holds it
    while (request := requests.recv()) is not None:
        if request["do"] == "start":
            pids = _start(request)
            running |= set(pids)
            answer: Any = pids
        else:
            with contextlib.suppress(ChildProcessError):
                while (found := os.waitpid(-1, os.WNOHANG))[0]:
                    ended[found[0]] = os.waitstatus_to_exitcode(found[1])
                    running.discard(found[0])
            answer = {pid: ended.get(pid) for pid in request["pids"]}
        requests.send(answer)
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def settle() -> None:
    """Finds out once what every fork would, and keeps from being copied what they share."""
    import torch

    from dpr.training.throughput import matrix_speed

    torch.set_num_threads(1)
    matrix_speed(torch.device("cpu"), torch.float32)  # found out once in a process
    gc.collect()
    gc.freeze()


def _start(request: dict[str, Any]) -> list[int]:
    pids: list[int] = []
    for rank in range(request["ranks"]):
        pid = os.fork()
        if pid == 0:
            log = os.open(f"{request['log']}.{rank}", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o666)
            files = os.open(os.devnull, os.O_RDONLY), log, log
            at_end = atexit._run_exitfuncs  # as an interpreter that ends by itself
            run_and_exit(partial(_run, request, rank), files, group=pids[0] if pids else 0, at_end=at_end)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pids[0] if pids else pid)  # here and in the child: whichever comes first
        pids.append(pid)
    return pids


def _run(request: dict[str, Any], rank: int) -> None:
    """In the child."""
    os.environ.update(request["environment"])
    if request["ranks"] > 1:
        os.environ.update(launcher_environment(rank, request["ranks"], request["port"]))
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # the parent asks where a run hangs
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from tests.faults import injections

    for name, arguments in request["injections"]:
        getattr(injections, name)(**arguments)
    sys.argv = [SCRIPT, *request["arguments"]]
    runpy.run_path(SCRIPT, run_name="__main__")
