"""A process that forks any command of ``dpr``, with a fault counted in the interpreter's audit events of files."""

import contextlib
import importlib
import json
import os
import resource
import selectors
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from tests.faults.server import settle
from tests.helpers.processes import run_and_exit

_CHANGING = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}


def serve(requests: Connection) -> None:
    """Serves until it is asked for nothing."""
    _import_everything()
    requests.send(os.getpid())
    while (request := requests.recv()) is not None:
        children = [_start(child) for child in request["children"]]
        requests.send([_wait(*child, deadline=time.monotonic() + request["limit_s"]) for child in children])


def _import_everything() -> None:
    import faiss

    jobs = "adapt compare download embed export mine quickstart retrieve train".split()
    names = "bm25s hydra pyarrow.parquet pytrec_eval tokenizers examples.docstring_corpus.__main__".split()
    names += ["dpr.preparation.conversion", "dpr.preparation.new_encoder"]
    for name in [*names, *(f"dpr.jobs.{job}" for job in jobs)]:
        importlib.import_module(name)
    from dpr.cli.main import COMMANDS

    for command in COMMANDS.values():
        command.settings_class()
    faiss.omp_set_num_threads(1)
    settle()


def _start(child: dict[str, Any]) -> tuple[int, int, int]:
    """The number of the forked process, and the ends of the pipes with what it prints and with its counts."""
    printed, reported = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(printed[0])
        os.close(reported[0])
        counts: dict[str, int] = {}
        run_and_exit(
            partial(_run, child, counts),
            (os.open(os.devnull, os.O_RDONLY), printed[1], printed[1]),
            at_end=lambda: os.write(reported[1], json.dumps(counts).encode()),
        )
    os.close(printed[1])
    os.close(reported[1])
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)  # here and in the child: whichever comes first
    return pid, printed[0], reported[0]


def _wait(pid: int, printed: int, reported: int, *, deadline: float) -> dict[str, Any]:
    """Exit code (minus the signal's number for one that a signal ended), output, and counts of one child."""
    texts = {printed: b"", reported: b""}
    with selectors.DefaultSelector() as selector:
        for end in texts:
            selector.register(end, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(timeout=1.0):
                chunk = os.read(key.fd, 2**16)
                texts[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
                    os.close(key.fd)
            if time.monotonic() > deadline:
                texts[printed] += b"\nTraceback: it did not end in time"
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                deadline += 3600
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # processes that it has started and left
    return {
        "code": code,
        "text": texts[printed].decode(errors="replace"),
        "counts": json.loads(texts[reported] or b"{}"),
    }


def _run(child: dict[str, Any], counts: dict[str, int]) -> int:
    """In the child."""
    os.environ.update(child["environment"])
    os.chdir(child["folder"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _place(child["fault"], child["number"], os.getcwd() + os.sep, counts)
    from dpr.cli.launch import exit_code_of
    from dpr.cli.main import main
    from examples.docstring_corpus.__main__ import main as docstring_corpus

    name, *rest = child["arguments"]
    sys.argv = ["dpr", name, *rest]
    if name in ("adapt", "quickstart"):
        _make_short_trainings()
    if name.startswith("examples."):
        return exit_code_of(lambda: docstring_corpus(rest))
    return main([name, *rest])


def _make_short_trainings() -> None:
    """Of small encoders, in stages, which run in this process."""
    from dpr.adaptation import choices, stages
    from tests.helpers.small_stages import small_command_line

    stages.command_line = small_command_line
    choices.LEAST_PAIRS = 64


def _place(fault: str, number: int, folder: str, counts: dict[str, int]) -> None:
    """Counts operations and writes, and makes ``fault`` happen before the ``number``-th (from 1) of its kind."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    owner = os.getpid()

    def fill_the_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    actions: dict[str, Callable[[], None]] = {
        "operations": lambda: os.killpg(0, signal.SIGKILL),
        "writes": fill_the_disk,
    }

    def count(kind: str) -> None:
        if os.getpid() == owner:
            counts[kind] = counts.get(kind, 0) + 1
            if kind == fault and counts[kind] == number:
                actions[kind]()

    def is_ours(path: Any) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        return os.path.abspath(os.fsdecode(path)).startswith(folder)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            event == "open"
            and isinstance(arguments[2], int)
            and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        ):
            if is_ours(arguments[0]):
                count("operations")
                count("writes")
        elif event in _CHANGING and any(is_ours(argument) for argument in arguments[:2]):
            count("operations")

    real = os.fsync

    def fsync(descriptor: Any) -> None:
        count("operations")
        real(descriptor)

    os.fsync = fsync
    sys.addaudithook(hook)
