"""Runs a stage's command: passes its output to the console and a file, and signals to it."""

from __future__ import annotations

import codecs
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

import dpr
from dpr.core.stopping import SignalBlock
from dpr.formats.durable import appended

_REST_OF_OUTPUT_S = 5.0


class PassOn(SignalBlock):
    """In this block SIGTERM, SIGINT and SIGUSR1 are remembered, and sent on to the command under way, which knows best how to end."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        """The number of the first signal; 0 while nobody has asked to stop."""
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, command: Sequence[str], log: Path) -> int:
        """Runs a command to its end; returns its exit code, 128 + the number of the signal for one that a signal ended."""
        with appended(log) as file:
            file.write(("$ " + " ".join(command) + "\n").encode())
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_environment()
            )
            self._child = child
            if self.asked:  # while it was being started
                child.send_signal(self.asked)
            assert child.stdout is not None
            reader = threading.Thread(target=_pass_output, args=(child.stdout, file), daemon=True)
            reader.start()
            try:
                code = child.wait()
            finally:
                self._child = None
            reader.join(_REST_OF_OUTPUT_S)  # what the command has started may hold its output open longer than it lives
        return code if code >= 0 else 128 - code

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = self.asked or number
        if self._child is not None:
            with suppress(ProcessLookupError):
                self._child.send_signal(number)


def python_command(arguments: Sequence[str], *, processes: int = 1) -> list[str]:
    """``dpr ARGUMENTS`` by this Python, on one process or under torchrun."""
    launcher = []
    if processes > 1:
        # torchrun would otherwise be ended by SIGUSR1 itself.
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        launcher += ["--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1", "-m"]
    return [sys.executable, "-m", *launcher, "dpr", *arguments]


def _environment() -> dict[str, str]:
    """This package is what ``-m dpr`` means, whatever lies in the working directory; output comes at once; ``DPR_LADDER`` tells a stage
    whom to end with."""
    place = str(Path(dpr.__file__).resolve().parents[1])
    paths = [place, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    own = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "DPR_LADDER": str(os.getpid())}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(paths)}


def _pass_output(stream: IO[bytes], file: IO[bytes]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    console: Any = sys.stdout
    while chunk := os.read(stream.fileno(), 65536):
        with suppress(OSError, ValueError):  # a full disk or a closed file must not make the command wait for us
            file.write(chunk)
        try:
            if console is not None:
                console.write(decoder.decode(chunk))
                console.flush()
        except (OSError, ValueError):
            console = None  # nobody reads any more
