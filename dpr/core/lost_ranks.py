"""Detection of a lost rank, which is then named; torch's errors name only addresses and timeouts.

Nothing is sent in normal operation. When an operation fails, the remaining ranks call the roll in the store
through which the group was formed. Each rank signs with its position; a rank that has not signed after some
seconds is lost.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as dist

from dpr.core.errors import ConfigError, DprError, LostRankError, StopRequested, first_line

ROLL_CALL_S = 3.0
_CONNECTION_ATTEMPTS = 3
_OF_A_CONNECTION = re.compile(
    r"gloo|connection (closed|reset|refused)|broken pipe|timed out|timeout|nccl|socket|rendezvous|store",
    re.IGNORECASE,
)
_open_sockets: set[int] = set()
_OF_A_WORKER = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)\s*(.*)")


@contextmanager
def named(position: str | Callable[[], str] = "") -> Iterator[None]:
    """Turns the loss of a process in the block into a LostRankError that names the process and ``position``
    ("at step 12").

    The message of any other failure, including errors for users, is left in the store for the ranks that lose
    this one because of it.

    Raises:
        LostRankError: another rank, or a data-loader worker of this one, has died or hangs.
        ConfigError: another run uses the port of this group.
    """
    try:
        yield
    except (LostRankError, StopRequested):
        raise  # all ranks raise it, so none needs the message
    except RuntimeError as error:
        where = position() if callable(position) else position
        if match := _OF_A_WORKER.search(str(error)):
            rank = f" of rank {os.environ['RANK']}" if "RANK" in os.environ else ""
            reason = match[2].strip().rstrip(".") or "exited unexpectedly"
            lost = LostRankError(
                f"data-loader worker {match[1].strip()}{rank} {reason}{where and ', '}{where}; often the"
                " machine ran out of memory: lower train.num_workers. Rerun the same command to resume from"
                " the last checkpoint"
            )
            _sign_off(lost)
            raise lost from error
        is_ranked = dist.is_available() and "RANK" in os.environ and "MASTER_ADDR" in os.environ
        if not is_ranked or not (isinstance(error, dist.DistError) or _OF_A_CONNECTION.search(str(error))):
            _sign_off(error)
            raise
        if "EADDRINUSE" in str(error):
            raise ConfigError(
                f"port {os.environ.get('MASTER_PORT')} of this machine is taken, most likely by another run;"
                " give it another port (--master-port), or start it with torchrun --standalone"
            ) from error
        raise LostRankError(_ranks_message(error, where)) from error
    except Exception as error:
        _sign_off(error)
        raise


@contextmanager
def opened_sockets() -> Iterator[None]:
    """Records the connections between ranks that the block opens; ``close_in_worker`` closes them."""
    before = _network_sockets()
    yield
    _open_sockets.update(_network_sockets() - before)


def close_in_worker() -> None:
    """Closes the connections that a forked worker inherited, so that the other ranks notice at once when the
    rank itself dies.

    Their file descriptors then lead to /dev/null instead of being free for new files: the worker also
    inherited objects that use them.
    """
    if _open_sockets:
        null = os.open(os.devnull, os.O_RDWR)
        for number in _open_sockets:
            with suppress(OSError):
                os.dup2(null, number)
        os.close(null)


def _network_sockets() -> set[int]:
    """Returns the file descriptors of this process's TCP sockets; none if the system does not list them."""
    sockets = set()
    with suppress(OSError):
        for number in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):
                if not stat.S_ISSOCK(os.fstat(number).st_mode):
                    continue
                with socket.socket(fileno=os.dup(number)) as copy:
                    if copy.family in (socket.AF_INET, socket.AF_INET6):
                        sockets.add(number)
    return sockets


def _ranks_message(error: RuntimeError, where: str) -> str:
    missing, reasons = _call_the_roll(where)
    if missing is None:
        who = "the group's store does not answer, so rank 0 or its launcher has ended"
    elif missing:
        names = ", ".join(map(str, missing))
        who = (
            f"rank{'s' if len(missing) > 1 else ''} {names} of {os.environ['WORLD_SIZE']} died or stopped"
            " answering"
        )
    elif reasons:
        who = "; ".join(f"rank {rank} failed: {reason}" for rank, reason in reasons.items())
    else:
        who = "the ranks lost their connections"
    return (
        f"{who}{where and ', '}{where} ({first_line(error)}). Rerun the same command to resume from the last"
        " checkpoint"
    )


def _call_the_roll(where: str) -> tuple[list[int] | None, dict[int, str]]:
    """Returns the ranks that do not answer (None if the store does not either), and the errors that ranks
    left in the store, by rank."""
    store = _store()
    if store is None:
        return None, {}
    keys = {rank: _key(rank) for rank in range(int(os.environ["WORLD_SIZE"]))}
    deadline = time.monotonic() + ROLL_CALL_S
    try:
        store.set(_key(int(os.environ["RANK"])), f"lost {where}")
        while (
            missing := [rank for rank, key in keys.items() if not store.check([key])]
        ) and time.monotonic() <= deadline:
            time.sleep(0.1)
        answers = {
            rank: store.get(key).decode("utf-8", "replace")
            for rank, key in keys.items()
            if rank not in missing
        }
    except RuntimeError:
        return None, {}
    return missing, {rank: answer[5:] for rank, answer in answers.items() if answer.startswith("fail ")}


def _sign_off(error: Exception) -> None:
    if (
        int(os.environ.get("WORLD_SIZE", "1")) > 1
        and dist.is_initialized()
        and (store := _store(timeout_s=1.0)) is not None
    ):
        with suppress(RuntimeError):
            kind = "" if isinstance(error, DprError) else f"{type(error).__name__}: "
            store.set(_key(int(os.environ["RANK"])), f"fail {kind}{error}"[:500])


def _key(rank: int) -> str:
    return f"dpr/roll-call/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{rank}"


def _store(timeout_s: float = ROLL_CALL_S) -> dist.Store | None:
    address = os.environ.get("MASTER_ADDR", "")
    with suppress(KeyError, ValueError, OSError, RuntimeError):
        port = int(os.environ["MASTER_PORT"])
        for attempt in range(_CONNECTION_ATTEMPTS):
            try:
                # Fails at once where nothing listens; the store itself would retry for twice the timeout.
                socket.create_connection((address, port), timeout=timeout_s).close()
                return dist.TCPStore(
                    address,
                    port,
                    is_master=False,
                    wait_for_workers=False,
                    timeout=timedelta(seconds=timeout_s),
                )
            except (TimeoutError, dist.DistNetworkError):
                # A machine that is busy may answer the second time.
                if attempt == _CONNECTION_ATTEMPTS - 1:
                    raise
    return None
