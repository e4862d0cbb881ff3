"""The server process: its socket, its signals and its end."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.serving.engine import Engine
from dpr.serving.settings import ServeSettings, is_loopback

logger = get_logger(__name__)


def serve(settings: ServeSettings, make: Callable[..., tuple[FastAPI, Engine]]) -> int:
    """Serves an application until a signal asks to end, and returns 0. ``make(token=...)`` makes it, with the engine
    that it asks.

    Raises:
        ConfigError: the service cannot listen at the address, or other machines could reach it and there is
            neither a token nor ``anyone``.
        InputError: the token file holds no token.
        DprError: the indexes cannot be opened.
    """
    token = None if settings.token_file is None else read_token(Path(settings.token_file))
    if token is None and not settings.anyone and not is_loopback(settings.host):
        raise ConfigError(
            f"host={settings.host} lets other machines search without a token; ask for one with"
            " token_file=<file>, or allow it with anyone=true"
        )
    # Messages that any client can cause must not fill the disk.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    app, engine = make(token=token)
    server = make_server(app, settings)
    listening = listen(settings)
    host, port = listening.getsockname()[:2]
    logger.info("opening http://%s:%d/", f"[{host}]" if ":" in host else host, port)

    def end(*_: object) -> None:
        server.should_exit = True

    engine.on_failure = end
    # Handles signals before uvicorn does, and after it: uvicorn answers the requests it has accepted, and
    # then raises the signal again.
    before = signal.signal(signal.SIGTERM, end)
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
    if engine.failures:
        raise engine.failures[0]
    if not engine.stop():  # it still opens indexes, or searches for a client that has left
        logging.shutdown()
        os._exit(0)
    return 0


def make_server(app: FastAPI, settings: ServeSettings) -> uvicorn.Server:
    """Returns a server of the application that ends once it has answered the requests it accepted."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.timeout) + 1,
        ws="none",
        http="h11",  # it limits the size of headers
    )
    return uvicorn.Server(config)


def read_token(file: Path) -> str:
    """Returns the token in a file.

    Raises:
        InputError: the file cannot be read, or holds no token of printable ASCII without spaces.
    """
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read ({getattr(error, 'strerror', None) or error})", file=file, expected="a token"
        ) from None
    if not token or not token.isprintable() or " " in token:
        raise InputError("holds no token", file=file, expected="one line of letters, digits and signs")
    return token


def listen(settings: ServeSettings) -> socket.socket:
    """Returns the socket of a service.

    Raises:
        ConfigError: the service cannot listen at the address.
    """
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        reason = str(error.strerror or error).partition(" (while")[0]  # newer Pythons repeat the address
        raise ConfigError(
            f"host={settings.host} port={settings.port}: {reason}; choose another port=, 0 = any"
        ) from None
