"""What a request has to pass before it is looked at, asked of the guard alone, through the server's own
interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping, Sequence
from typing import Any

import pytest

from dpr.serving.guard import FAILED, NOT_JSON, Guard, is_loopback
from dpr.serving.settings import ServeSettings

JSON = {"content-type": "application/json"}
Message = MutableMapping[str, Any]


class Service:
    """A guard before an application that answers with the body it got, and what became of each request."""

    def __init__(self, *, token: str | None = None, **settings: Any) -> None:
        self.observed: list[tuple[str, int]] = []
        self.seen: list[bytes] = []
        self.given_up = 0
        self.hold: asyncio.Event | None = None
        options: dict[str, Any] = {
            "host": "127.0.0.1",
            "max_body": 100,
            "max_concurrent": 2,
            "timeout": 0.2,
            **settings,
        }
        self.guard = Guard(
            self._app,
            ServeSettings(**options),
            token=token,
            observe=lambda path, status: self.observed.append((path, status)),
        )

    async def _app(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["path"] == "/broken":
            raise RuntimeError("inside")
        if scope["path"] == "/broken-late":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise RuntimeError("inside")
        self.seen.append((await receive())["body"] if scope["method"] == "POST" else b"")
        try:
            if self.hold is not None:
                await self.hold.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-app", b"1")]})
        await send({"type": "http.response.body", "body": self.seen[-1]})

    async def ask(
        self,
        path: str = "/search",
        *,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        chunks: Sequence[bytes] = (b"{}",),
        leaves: bool = False,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer; 0 where there is none. After its ``chunks`` the other side
        waits, or ``leaves``."""
        given = {"host": "localhost:8000", **(JSON if method == "POST" else {}), **(headers or {})}
        scope = {
            "type": "http",
            "path": path,
            "method": method,
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }
        parts, answers = list(chunks), []

        async def receive() -> Message:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            if leaves:
                return {"type": "http.disconnect"}
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            answers.append(message)

        await self.guard(scope, receive, send)
        if not answers:
            return 0, {}, b""
        told = {name.decode(): value.decode() for name, value in answers[0]["headers"]}
        return answers[0]["status"], told, b"".join(message.get("body", b"") for message in answers[1:])


def ask(service: Service, *path: str, **options: Any) -> tuple[int, dict[str, str], bytes]:
    return asyncio.run(service.ask(*path, **options))


def test_a_good_request_is_passed_on_whole_and_its_answer_is_of_no_use_to_other_pages() -> None:
    service = Service()
    status, headers, body = ask(service, chunks=[b'{"question":', b' "a"}'])
    assert (status, body) == (200, b'{"question": "a"}')
    assert (
        headers["x-app"] == "1"
        and headers["x-content-type-options"] == "nosniff"
        and headers["cache-control"] == "no-store"
    )
    assert service.observed == [("/search", 200)]
    assert service.guard.num_requests == 0


@pytest.mark.parametrize(
    ("path", "options", "status", "words"),
    [
        ("/search", {"headers": {"content-type": "text/plain"}}, 415, "application/json"),
        ("/search", {"headers": {"content-length": "101"}}, 413, "larger than 100 bytes"),
        ("/search", {"headers": {"content-length": "9" * 5000}}, 413, "larger than 100 bytes"),
        ("/search", {"headers": {"content-length": "-1"}}, 413, "larger than 100 bytes"),
        ("/search", {"chunks": [b"x" * 60, b"x" * 60]}, 413, "larger than 100 bytes"),
        ("/search", {"chunks": ['{"a": 1}'.encode("utf-16")]}, 400, NOT_JSON),
        ("/search", {"chunks": [b'"a\0"']}, 400, NOT_JSON),
        ("/search", {"headers": {"host": "evil.example"}}, 421, "localhost only"),
        ("/search", {"headers": {"host": "localhost.evil.example"}}, 421, "localhost only"),
        ("/", {"method": "GET", "headers": {"host": "evil.example"}}, 421, "localhost only"),
        ("/search", {"headers": {"sec-fetch-site": "cross-site"}}, 403, "a page of another address"),
        ("/broken", {}, 500, FAILED),
    ],
)
def test_what_is_refused_never_reaches_the_application(
    path: str, options: dict[str, Any], status: int, words: str
) -> None:
    service = Service()
    found, headers, body = ask(service, path, **options)
    assert found == status
    assert words in json.loads(body)["error"]
    assert headers["content-type"] == "application/json" and headers["x-content-type-options"] == "nosniff"
    assert service.seen == [] and service.observed == [(path, status)] and service.guard.num_requests == 0


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST:1"])
def test_names_of_this_machine_are_answered(host: str) -> None:
    assert ask(Service(), headers={"host": host})[0] == 200


def test_health_is_told_to_anybody_and_the_page_to_links_of_other_pages() -> None:
    assert ask(Service(), "/healthz", method="GET", headers={"host": "evil.example"})[0] == 200
    linked = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}
    assert ask(Service(), "/page/search.js", method="GET", headers={"sec-fetch-site": "cross-site"})[0] == 200
    assert ask(Service(), "/search", method="GET", headers=linked)[0] == 200


def test_a_token_is_needed_but_for_health_and_the_page() -> None:
    service = Service(token="secret", host="0.0.0.0")
    assert ask(service)[0] == 401
    assert ask(service, headers={"authorization": "Bearer secre"})[0] == 401
    status, headers, _ = ask(service, headers={"authorization": "secret"})
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert ask(service, headers={"authorization": "Bearer secret", "host": "any.example"})[0] == 200
    for path in ("/healthz", "/readyz", "/", "/page/search.js"):
        assert ask(service, path, method="GET", headers={"host": "any.example"})[0] == 200, path
    assert ask(service, "/metrics", method="GET")[0] == 401
    assert ask(service, "/pages", method="GET")[0] == 401


def test_a_body_that_does_not_arrive_is_not_waited_for() -> None:
    service = Service()

    async def slow() -> tuple[int, dict[str, str], bytes]:
        started, answers = asyncio.Event(), []

        async def receive() -> Message:
            if started.is_set():
                await asyncio.Event().wait()
            started.set()
            return {"type": "http.request", "body": b"{", "more_body": True}

        async def send(message: Message) -> None:
            answers.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        await service.guard(
            {"type": "http", "path": "/search", "method": "POST", "headers": headers}, receive, send
        )
        return (
            answers[0]["status"],
            {name.decode(): value.decode() for name, value in answers[0]["headers"]},
            answers[1]["body"],
        )

    status, headers, body = asyncio.run(slow())
    assert status == 408 and headers["connection"] == "close" and b"within 0.2 s" in body
    assert ask(service, chunks=[], leaves=True)[0] == 400  # left before its body was complete


def test_more_than_there_is_room_for_are_told_to_come_again_and_health_is_answered() -> None:
    async def run() -> None:
        service = Service(max_concurrent=2)
        service.hold = asyncio.Event()
        held = [asyncio.create_task(service.ask()) for _ in range(2)]
        while len(service.seen) < 2:
            await asyncio.sleep(0)
        status, headers, _ = await service.ask()
        assert (status, headers["retry-after"]) == (429, "1")
        service.hold.set()
        assert [status for status, *_ in await asyncio.gather(*held)] == [200, 200]
        assert (await service.ask())[0] == 200

    asyncio.run(run())


def test_work_is_given_up_where_the_other_side_has_left() -> None:
    async def run() -> Service:
        service = Service()
        service.hold = asyncio.Event()
        assert (await service.ask(leaves=True))[0] == 0
        await asyncio.sleep(0)
        assert service.given_up == 1
        return service

    service = asyncio.run(run())
    assert service.observed == [("/search", 499)]
    assert service.guard.num_requests == 0


def test_a_failure_after_the_answer_has_begun_sends_no_second_one() -> None:
    service = Service()
    status, _, body = ask(service, "/broken-late")
    assert (status, body) == (200, b"")
    assert service.observed == [("/broken-late", 200)]


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.2", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("example", False)],
)
def test_which_addresses_only_this_machine_reaches(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected
