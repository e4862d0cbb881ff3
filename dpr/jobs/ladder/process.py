"""Runs a stage's command: copies its output to the console and a file, and forwards signals to it."""

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

from dpr.core.stopping import SignalBlock
from dpr.storage.durable import appended

_REST_OF_OUTPUT_S = 5.0


class PassOn(SignalBlock):
    """In this block SIGTERM, SIGINT and SIGUSR1 are remembered and forwarded to the running command, which knows best how to end."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        """The number of the first signal; 0 before any."""
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, command: Sequence[str], log: Path) -> int:
        """Runs a command; returns its exit code, or 128 + the number of the signal that ended it."""
        with appended(log) as file:
            file.write(("$ " + " ".join(command) + "\n").encode())
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_environment()
            )
            self._child = child
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
            reader.join(_REST_OF_OUTPUT_S)  # processes that the command started may hold its output open after its end
        return code if code >= 0 else 128 - code

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = self.asked or number
        if self._child is not None:
            with suppress(ProcessLookupError, ValueError):  # ValueError: Windows, where Ctrl-C reaches the command by itself
                self._child.send_signal(number)


def python_command(arguments: Sequence[str], *, processes: int = 1) -> list[str]:
    """``dpr ARGUMENTS`` with this Python, in one process or under torchrun."""
    launcher = []
    if processes > 1:
        # SIGUSR1 would otherwise end torchrun itself.
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        launcher += ["--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1", "-m"]
    return [sys.executable, "-m", *launcher, "dpr", *arguments]


def _environment() -> dict[str, str]:
    """``-m dpr`` means this package, whatever is in the working directory; output is not buffered; a stage ends when the process that
    ``DPR_LADDER`` names has ended."""
    paths = [str(Path(__file__).resolve().parents[2]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
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
