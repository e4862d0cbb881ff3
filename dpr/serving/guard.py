"""What every request passes before it is looked at: its address, token, type and size, and whether there is
room for it.

Written for the server's own interface (ASGI), so that a refused request costs next to nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

from dpr.core.logs import get_logger
from dpr.serving.settings import ServeSettings
from dpr.storage.strict_json import require_shallow

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]

logger = get_logger(__name__)
HEALTH = ("/healthz", "/readyz")
"""Always answered, to anybody."""
OPENAI = "/v1/embeddings"
FAILED = "the service has failed at this request; its log says why"
NOT_JSON = "the body is not JSON in UTF-8, or is nested too deeply"
_LEFT = 499  # in the counts: the other side left before it was answered
_UNCOUNTED = (*HEALTH, "/metrics")  # a full service must be able to say so
_PAGE = re.compile(r"/|/page/[^?]*")
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
            b" connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    ),
]


class Refused(Exception):
    """A request that is not looked at: its status, and a sentence that says why."""

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]


class Guard:
    """Refuses what need not be looked at, and passes the rest on with its whole body.

    Args:
        token: that requests must carry; None = none. Health and the page's own files are without secrets and
        need none.
        observe: called with the path's first part and the status of every answer.
    """

    def __init__(
        self,
        app: App,
        settings: ServeSettings,
        *,
        token: str | None = None,
        observe: Callable[[str, int], None] = lambda path, status: None,
    ) -> None:
        self._app, self._settings, self._token, self._observe = app, settings, token, observe
        self._loopback_only = token is None and is_loopback(settings.host)
        self.num_requests = 0
        """At work or waiting."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status: int | None = None
        refusal: MutableMapping[str, Any] | None = None

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal status, refusal
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *_HEADERS]
                if message["status"] >= 400 and scope["path"] == OPENAI:
                    refusal = message
                    return
            elif refusal is not None:
                await send(_as_openai(refusal, message))
            await send(message)

        is_counted = scope["path"] not in _UNCOUNTED
        self.num_requests += is_counted
        try:
            headers = {name.lower(): value for name, value in scope["headers"]}
            self._check(scope, headers)
            # A body is read only where it is looked at: other paths are open to anybody, or not counted.
            is_looked_at = not _is_open(scope["path"]) and is_counted
            body = await self._body(receive, headers) if is_looked_at and scope["method"] == "POST" else b""
            _check_body(body)
            work = self._app(scope, _once(body), answer)
            if not is_looked_at:
                await work
            elif not await _is_waited_for(work, receive, lambda: status is not None):
                status = _LEFT
        except Refused as refused:
            await _refuse(answer, refused)
        except Exception:
            logger.exception("a request failed")
            if status is None:
                await _refuse(answer, Refused(500, FAILED))
        finally:
            self.num_requests -= is_counted
            self._observe(scope["path"], status or 500)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raises Refused by what the head of a request says."""
        path, method = scope["path"], scope["method"]
        if path in HEALTH:
            return
        if self.num_requests > self._settings.max_concurrent and path not in _UNCOUNTED:
            raise Refused(
                429,
                f"{self._settings.max_concurrent} requests are at work or waiting; try again later",
                retry_after="1",
            )
        # A page of another site may have its name point here; it cannot know a token, but without one only
        # the name tells.
        if self._loopback_only and not _names_this_machine(headers.get(b"host", b"")):
            raise Refused(
                421, "this service answers to localhost only; start it with another host= or with token_file="
            )
        if self._loopback_only and not _is_open(path) and _is_of_another_page(headers):
            raise Refused(403, "a page of another address asks; this service answers to its own page")
        if self._token is not None and not _is_open(path):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self._token.encode()):
                found = "another token" if given else "no token"
                raise Refused(
                    401,
                    f"{found}, expected the header Authorization: Bearer <token>",
                    www_authenticate="Bearer",
                )
        if (
            method == "POST"
            and headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json"
        ):
            raise Refused(415, "expected a body of the type application/json")

    async def _body(self, receive: Receive, headers: dict[bytes, bytes]) -> bytes:
        most = self._settings.max_body
        too_large = Refused(413, f"the body is larger than {most} bytes; send fewer questions at a time")
        stated = headers.get(b"content-length", b"0")
        if not stated.isdigit() or int(stated[:12]) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.timeout):
                while (message := await receive())["type"] == "http.request":
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise too_large
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {self._settings.timeout:g} s") from None
        raise Refused(400, "the other side has left before its body was complete")


def _check_body(body: bytes) -> None:
    """Refuses what a parser would read in another encoding, or recurse in."""
    try:
        text = body.decode()
        if "\0" in text:
            raise ValueError
        require_shallow(text)
    except ValueError:
        raise Refused(400, NOT_JSON) from None


async def _is_waited_for(
    work: Coroutine[Any, Any, None], receive: Receive, has_begun: Callable[[], bool]
) -> bool:
    """Does the work. Where the other side leaves before its answer has begun, the work is given up, and False
    returned."""

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(leave())
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done() and not has_begun():
            return False
        await working
        return True
    finally:
        working.cancel()
        leaving.cancel()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a service that listens at ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names_this_machine(host: bytes) -> bool:
    name = host.decode("latin-1").lower()
    name = name[1 : name.find("]")] if name.startswith("[") else name.partition(":")[0]
    return is_loopback(name)


def _is_open(path: str) -> bool:
    return path in HEALTH or _PAGE.fullmatch(path) is not None


def _is_of_another_page(headers: dict[bytes, bytes]) -> bool:
    """Whether a browser says so. Such a page could read no answer, but make the service work; a link that is
    followed is fine."""
    is_other = headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin")
    return is_other and headers.get(b"sec-fetch-dest") != b"document"


def _once(body: bytes) -> Receive:
    """Gives the body, and then waits: that the other side has left shows when the answer is sent."""
    is_given = False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal is_given
        if is_given:
            await asyncio.Event().wait()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _as_openai(
    start: MutableMapping[str, Any], message: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Moves the sentence of a refusal, all of ``message``, to where OpenAI's clients look for it. Returns
    ``start`` with its length."""
    message["body"] = json.dumps({"error": {"message": json.loads(message["body"])["error"]}}).encode()
    headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
    return {**start, "headers": [*headers, (b"content-length", str(len(message["body"])).encode())]}


async def _refuse(send: Send, refused: Refused) -> None:
    body = json.dumps({"error": str(refused)}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *refused.headers,
    ]
    if refused.status in (408, 413):
        headers.append((b"connection", b"close"))  # what still arrives of the body is no request
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
