"""The server process: its socket, its signals, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn

from dpr.core.errors import ConfigError, DprError, InputError, first_line
from dpr.core.logs import get_logger, limit_rate
from dpr.serving.app import make_app
from dpr.serving.figures import Figures
from dpr.serving.guard import Guard, is_loopback
from dpr.serving.queueing import Service
from dpr.serving.settings import ServeSettings
from dpr.serving.workers import Worker

logger = get_logger(__name__)


def serve(settings: ServeSettings, command: Sequence[str]) -> int:
    """Serves until a signal asks to end, and returns 0.

    Args:
        command: starts a worker.

    Raises:
        ConfigError: the address cannot be listened at, or other machines reach it and nothing says that they
        may search.
        InputError: the token file holds no token.
        DprError: the indexes cannot be opened.
    """
    token = None if settings.token_file is None else read_token(Path(settings.token_file))
    if token is None and not settings.anyone and not is_loopback(settings.host):
        what = "lets other machines search and reload without a token"
        raise ConfigError(
            f"host={settings.host} {what}; ask for one with token_file=<file>, or allow it with anyone=true"
        )
    for name in ("dpr", "uvicorn.error", "asyncio"):
        limit_rate(logging.getLogger(name))
    listening = listen(settings)
    failures: list[Exception] = []
    figures = Figures()
    service = Service(
        lambda began: Worker.start(command, began, limit=settings.open_timeout),
        patience=2 * settings.timeout,
        workers=settings.workers,
        batch=settings.batch,
        observe=figures.stage,
    )

    def fail(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    app = make_app(settings, service, figures=figures, token=token, on_failure=fail)
    server = Server(app, settings, service)
    # SIGTERM is passed on once everything is answered
    handlers = {
        "SIGTERM": lambda *_: None,
        "SIGHUP": server.hang_up,
    }
    before = {
        name: signal.signal(getattr(signal, name), handler)
        for name, handler in handlers.items()
        if hasattr(signal, name)
    }
    logger.info("opening %s", _url(settings, listening))
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
    if failures:
        raise failures[0]
    return 0


class Server(uvicorn.Server):
    """uvicorn's server, which also reloads at SIGHUP, and ends connections that stand still."""

    def __init__(self, app: Guard, settings: ServeSettings, service: Service) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.timeout) + 1,
            ws="none",
            http="h11",  # it limits the size of headers
        )
        super().__init__(config)
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reload: asyncio.Task[None] | None = None
        self._ticks = max(1, round(settings.timeout / 0.1))  # uvicorn's are 0.1 s apart
        self._still: dict[Any, Any] = {}

    async def on_tick(self, counter: int) -> bool:
        """Once per ``timeout``, ends connections without a request at work on which no request and no byte of
        an answer got through."""
        if counter % self._ticks == 0:
            connections: list[Any] = list(self.server_state.connections)
            seen = {
                one: (one.cycle, one.transport.get_write_buffer_size())
                for one in connections
                if _is_idle(one)
            }
            for connection, state in seen.items():
                if self._still.get(connection) == state:
                    connection.transport.abort()
            self._still = seen
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def hang_up(self, *_: object) -> None:
        """At SIGHUP: reloads. Before the start and at the end there is nothing to reload."""
        if self._loop is not None and not self.should_exit:
            self._loop.call_soon_threadsafe(self._start_reload)

    def _start_reload(self) -> None:
        self._reload = asyncio.create_task(self._reloaded())

    async def _reloaded(self) -> None:
        try:
            await self._service.reload()
            logger.info("the indexes were opened again")
        except DprError as error:
            logger.error(
                "the indexes cannot be opened, the ones before go on answering: %s", first_line(error)
            )


def _is_idle(connection: Any) -> bool:
    """Whether the other side is to send a request, or to read what was sent."""
    return connection.cycle is None or connection.cycle.response_complete or connection.flow.write_paused


def read_token(file: Path) -> str:
    """The token in a file.

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
    """The socket of a service.

    Raises:
        ConfigError: the address cannot be listened at.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[
            0
        ]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        reason = str(error.strerror or error).partition(" (while")[0]  # newer Pythons repeat the address
        raise ConfigError(
            f"host={settings.host} port={settings.port}: {reason}; choose another port=, 0 = any"
        ) from None


def _url(settings: ServeSettings, listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
