"""Runs a function on several processes that form a gloo group; forks that work as programs do."""

import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing import set_start_method
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any, NoReturn

from tests.helpers.patience import patient

TIMEOUT_S = 120.0
_IMPORTED = (
    "torch.distributed",
    # with all that transformers imports for its first model and tokenizer
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
    "safetensors.torch",
    "hydra",
    "dpr.jobs.train",
    "dpr.training.bi_encoder_trainer",
    "tests.helpers.warmed_up",
    "tests.helpers.quick",
    "tests.helpers.tiny",
)
"""What the process that ranks are forked from has imported. None of these starts a thread."""


def run_and_exit(
    work: Callable[[], int | None],
    files: Sequence[int],
    *,
    group: int = 0,
    at_end: Callable[[], object] = lambda: None,
) -> NoReturn:
    """Works, in a fork, with ``files`` as its standard ones, and ends with the exit code of ``work``."""
    code: int | None = 1
    try:
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(0, group)
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        code = work()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            at_end()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code or 0)


class RankFailed(AssertionError):
    """A rank raised, died or hung; the message carries its number and its traceback."""


class _Forked(ForkServerProcess):
    """A process with the environment of the one that starts it; the server's own may be older."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        # As in every other process: workers of data loaders are forks, and no copies of another fork server.
        set_start_method("fork", force=True)
        super().run()


def fork_server() -> ForkServerContext:
    """Starts processes in milliseconds, as copies of one that has imported torch and has no threads."""
    context = ForkServerContext()
    context.Process = _Forked  # type: ignore[misc]
    context.set_forkserver_preload([*_IMPORTED])
    return context


class Served:
    """A process that answers requests, a copy of the fork server's: ``serve`` gets the end of a pipe."""

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        context = fork_server()
        self._requests, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other,))
        self._process.start()
        other.close()
        self.pid = self._requests.recv()

    def ask(self, request: Any) -> Any:
        self._requests.send(request)
        return self._requests.recv()

    def close(self) -> None:
        self._requests.send(None)
        self._process.join(patient(30))
        self._requests.close()


def run_on_ranks(
    fn: Callable[..., Any], world_size: int, *args: Any, join: bool = True, timeout_s: float = TIMEOUT_S
) -> list[Any]:
    """Calls the module-level ``fn(*args)`` on every rank of a gloo group (none with ``join=False``), in rank order."""
    if world_size == 1:
        return [fn(*args)]
    import torch.distributed as dist

    # The parent holds the store, as torchrun's agent does: port 0 is then free of races between tests that
    # run side by side.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = fork_server()
    readers, processes = [], []
    try:
        for rank in range(world_size):
            reader, writer = context.Pipe(duplex=False)
            environment = launcher_environment(rank, world_size, store.port)
            environment |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
            process = context.Process(
                target=_on_rank, args=(fn, args, environment, join, timeout_s, writer), daemon=True
            )
            process.start()
            writer.close()
            readers.append(reader)
            processes.append(process)
        return _collect(readers, processes, timeout_s)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def launcher_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world_size))
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    return dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) | sizes | address


def _on_rank(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    environment: dict[str, str],
    join: bool,
    timeout_s: float,
    out: Connection,
) -> None:
    os.environ.update(environment)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        if join:
            dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        result = fn(*args)
        if join:
            dist.destroy_process_group()
        # Plain pickles: torch's own would share memory with a process that is about to end.
        out.send_bytes(pickle.dumps((True, result)))
    except BaseException:
        out.send_bytes(pickle.dumps((False, traceback.format_exc())))
    finally:
        out.close()


def _collect(readers: list[Connection], processes: list[Any], timeout_s: float) -> list[Any]:
    deadline = time.monotonic() + patient(timeout_s)
    results: dict[int, Any] = {}
    while len(results) < len(readers):
        open_readers = [reader for rank, reader in enumerate(readers) if rank not in results]
        ready = wait(open_readers, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            missing = [rank for rank in range(len(readers)) if rank not in results]
            raise RankFailed(f"ranks {missing} of {len(readers)} did not finish within {timeout_s:g} s")
        for reader in ready:
            rank = readers.index(reader)  # type: ignore[arg-type]
            try:
                is_good, value = pickle.loads(readers[rank].recv_bytes())
            except EOFError:
                processes[rank].join()
                raise RankFailed(
                    f"rank {rank} of {len(readers)} died with exit code {processes[rank].exitcode}"
                ) from None
            if not is_good:
                raise RankFailed(f"rank {rank} of {len(readers)} raised:\n{value}")
            results[rank] = value
    return [results[rank] for rank in range(len(readers))]
