"""Runs a stage's command: copies its output to the console and a file, and forwards signals to it.

Importing torch and transformers takes longer than most stages of a small corpus. So the process of the
command imports them once, and each stage of one process is a fork of it: a copy that starts in milliseconds.
It computes nothing itself, since the threads of OpenMP would be missing in a copy.
"""

from __future__ import annotations

import codecs
import importlib
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import IO, Any

from dpr.core.stopping import OWNED_PROCESS, SignalBlock
from dpr.storage.durable import appended

_REST_OF_OUTPUT_S = 5.0
_IMPORTED = (
    "dpr.jobs.train",
    "dpr.jobs.embed",
    "dpr.jobs.retrieve",
    "hydra",
    "transformers.models.bert.modeling_bert",
)
"""What stages are copied with."""


class PassOn(SignalBlock):
    """In this block SIGTERM, SIGINT and SIGUSR1 are remembered and forwarded to the running command, which
    knows best how to end."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        """The number of the first signal; 0 before any."""
        self._child: subprocess.Popen[bytes] | _Fork | None = None

    def run(self, command: Sequence[str], log: Path) -> int:
        """Runs a command; returns its exit code, or 128 + the number of the signal that ended it."""
        with appended(log) as file:
            file.write(os.fsencode(f"$ {' '.join(command)}\n"))
            self._child = child = _start(command, _environment())
            if self.asked:  # while it was being started
                with suppress(ValueError):
                    child.send_signal(self.asked)
            assert child.stdout is not None
            reader = threading.Thread(target=_pass_output, args=(child.stdout, file), daemon=True)
            reader.start()
            try:
                code = child.wait()
            finally:
                self._child = None
            # processes that the command started may hold its output open after its end
            reader.join(_REST_OF_OUTPUT_S)
        return code if code >= 0 else 128 - code

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = self.asked or number
        if self._child is not None:
            with suppress(
                ProcessLookupError, ValueError
            ):  # ValueError: Windows, where Ctrl-C reaches the command by itself
                self._child.send_signal(number)


class _Fork:
    """What is used of a ``Popen``, of a copy of this process that runs ``dpr ARGUMENTS``."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        reader, writer = os.pipe()
        self._process = get_context("fork").Process(
            target=_run_in_fork, args=(arguments, environment, writer)
        )
        self._process.start()
        os.close(writer)
        self.stdout: IO[bytes] | None = os.fdopen(reader, "rb")

    def wait(self) -> int:
        self._process.join()
        return int(self._process.exitcode or 0)

    def send_signal(self, number: int) -> None:
        os.kill(int(self._process.pid or 0), number)


def _start(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes] | _Fork:
    alone = python_command([])
    # otherwise whoever called may have computed something
    is_own = os.environ.get(OWNED_PROCESS) == str(os.getpid())
    if is_own and sys.platform == "linux" and command[: len(alone)] == alone:
        for name in _IMPORTED:
            importlib.import_module(name)
        return _Fork(command[len(alone) :], environment)
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )


def _run_in_fork(arguments: Sequence[str], environment: Mapping[str, str], output: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    sys.argv = ["dpr", *arguments]
    runpy.run_module("dpr", run_name="__main__", alter_sys=True)


def python_command(arguments: Sequence[str], *, processes: int = 1) -> list[str]:
    """``dpr ARGUMENTS`` with this Python, in one process or under torchrun."""
    launcher = []
    if processes > 1:
        # SIGUSR1 would otherwise end torchrun itself.
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        launcher += ["--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1", "-m"]
    return [sys.executable, "-m", *launcher, "dpr", *arguments]


def _environment() -> dict[str, str]:
    """``-m dpr`` means this package, whatever is in the working directory; output is not buffered; a stage
    ends when the process that ``DPR_LADDER`` names has ended."""
    paths = [
        str(Path(__file__).resolve().parents[2]),
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
    ]
    fixed = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "DPR_LADDER": str(os.getpid())}
    return {**os.environ, **fixed, "PYTHONPATH": os.pathsep.join(paths)}


def _pass_output(stream: IO[bytes], file: IO[bytes]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    console: Any = sys.stdout
    while chunk := os.read(stream.fileno(), 65536):
        with suppress(OSError, ValueError):  # a full disk or a closed file must not block the command
            file.write(chunk)
        try:
            if console is not None:
                console.write(decoder.decode(chunk))
                console.flush()
        except (OSError, ValueError):
            console = None  # the reader has exited
