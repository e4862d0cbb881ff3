"""The connections between ranks, which forked workers of a rank inherit and must not keep open after its death."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_of_the_group: set[int] = set()


@contextmanager
def opened_for_the_group() -> Iterator[None]:
    """A block that opens the connections of the group of processes."""
    before = _network_sockets()
    yield
    _of_the_group.update(_network_sockets() - before)


def close_in_worker() -> None:
    """In a forked worker: drops its copies of the connections, so that the other ranks notice at once when the rank itself dies.

    The numbers lead nowhere afterwards rather than being free for new files: objects that know them were inherited too.
    """
    if _of_the_group:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in _of_the_group:
            with suppress(OSError):
                os.dup2(nowhere, number)
        os.close(nowhere)


def _network_sockets() -> set[int]:
    """Numbers of this process's open TCP sockets; none where the system does not list them."""
    found = set()
    with suppress(OSError):
        for number in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    found.add(number)
    return found
