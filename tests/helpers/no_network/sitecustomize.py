"""Python imports this module at its start if PYTHONPATH has its folder: connections then stay on this machine."""

import ipaddress
import socket
from typing import Any


def _is_near(self: socket.socket, address: Any) -> bool:
    host = str(address[0]) if isinstance(address, tuple) else ""
    return (
        self.family == getattr(socket, "AF_UNIX", None)
        or host in ("", "localhost", "::1")
        or host.startswith("127.")
        or _is_own(host)
    )


def _is_own(host: str) -> bool:
    """Whether it is an address, not a name, of this machine: only these can be bound."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True


def _guarded(name: str) -> None:
    real = getattr(socket.socket, name)

    def guarded(self: socket.socket, *arguments: Any) -> Any:
        if not _is_near(self, arguments[-1]):
            raise OSError(f"tests may not use the network (connection to {arguments[-1]!r})")
        return real(self, *arguments)

    setattr(socket.socket, name, guarded)


def block_connections() -> None:
    """Done once however often it is asked for."""
    if not hasattr(socket.socket, "guarded_by_tests"):
        socket.socket.guarded_by_tests = True  # type: ignore[attr-defined]
        for name in ("connect", "connect_ex", "sendto"):
            _guarded(name)


block_connections()
