"""Programs ``dpr`` and ``python`` for scripts: each call is a fork of a process that has imported torch."""

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from tests.helpers.processes import fork_server, run_and_exit

_PROGRAM = """\
#!{python} -S
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([os.getcwd(), dict(os.environ), sys.argv]).encode()
socket.send_fds(server, [request], [0, 1, 2])
sys.exit(server.recv(1)[0])
"""


@contextlib.contextmanager
def warm_dpr(folder: Path) -> Iterator[Path]:
    """Writes the programs into ``folder`` and answers their calls."""
    folder.mkdir()
    address = str(folder / "socket")
    for name in ("dpr", "python"):
        (folder / name).write_text(_PROGRAM.format(python=sys.executable, address=address))
        (folder / name).chmod(0o755)
    context = fork_server()
    ready, other = context.Pipe(duplex=False)
    server = context.Process(target=_serve, args=(address, other))
    server.start()
    ready.recv()
    try:
        yield folder
    finally:
        server.kill()
        server.join()


def _serve(address: str, ready: Connection) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        ready.send(True)
        while True:
            call, _ = server.accept()
            if os.fork() == 0:
                _answer(call)
            call.close()


def _answer(call: socket.socket) -> None:
    """Runs the command in a process of its own, which is killed when the other end of ``call`` is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, files, _, _ = socket.recv_fds(call, 2**20, 3)
    pid = os.fork()
    if pid == 0:
        run_and_exit(partial(_run, *json.loads(request)), files)
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if select.select([call], [], [], 0.005)[0]:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os._exit(0)
    call.send(bytes([os.waitstatus_to_exitcode(ended[1]) % 256]))
    os._exit(0)


def _run(folder: str, environment: dict[str, str], arguments: list[str]) -> int:
    """In the last child."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    import torch

    from dpr.cli.main import main

    torch.set_num_threads(1)
    sys.argv = arguments
    if Path(arguments[0]).name == "dpr":
        return main(arguments[1:])
    _run_python(arguments[1:])
    return 0


def _run_python(arguments: list[str]) -> None:
    """What ``python`` does with a script, or with ``-m`` and a module."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")
