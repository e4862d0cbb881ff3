"""What a service refuses by the head of a request, and connections that stand still."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.request
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.patience import patient
from tests.helpers.serving import listening, local_app, served, wait_until

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("prometheus_client", reason="the extra serve is not installed")


UNREAD = ["/healthz", "/page/page.js", "/", "/metrics"]


def answered(
    path: str,
    method: str = "GET",
    host: str = "127.0.0.1",
    token: str | None = None,
    *messages: dict[str, Any],
) -> list[int]:
    """Statuses of the answers to a request of whose body only ``messages`` arrive."""
    guard, _, _ = local_app({}, lambda jobs: None, token, {})
    sent: list[MutableMapping[str, Any]] = []
    arriving = list(messages)

    async def receive() -> MutableMapping[str, Any]:
        if not arriving:
            assert path not in UNREAD, "the body is waited for"
            await asyncio.Event().wait()
        return arriving.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
    }
    scope |= {"scheme": "http", "server": ("127.0.0.1", 80), "http_version": "1.1"}
    headers = [(b"host", host.encode()), (b"content-type", b"application/json"), (b"content-length", b"1000")]
    asyncio.run(guard(scope | {"headers": headers}, receive, send))
    return [message["status"] for message in sent if "status" in message]


def test_odd_addresses_and_names_are_answered() -> None:
    assert answered("*", "OPTIONS") == [404]
    assert answered("/nothing", host="[::1x") == [404]


@pytest.mark.parametrize("path", UNREAD)
def test_bodies_are_read_only_where_they_are_looked_at(path: str) -> None:
    assert answered(path, "POST") == [405]
    assert answered(path, "POST", token="secret") == [401 if path == "/metrics" else 405]


def test_half_a_body_is_no_request() -> None:
    half = {"type": "http.request", "body": b"{}", "more_body": True}
    assert answered("/reload", "POST", "127.0.0.1", None, half, {"type": "http.disconnect"}) == [400]


def test_a_page_of_another_address_cannot_make_it_work(run_folder: Path) -> None:
    with served({"run": run_folder}, modes="bm25") as client:
        for site in ("cross-site", "same-site"):
            other = {"sec-fetch-site": site, "sec-fetch-dest": "empty"}
            assert client.get("/v1/run/search?query=ka", headers=other).status_code == 403
            assert client.post("/reload", json={}, headers=other).status_code == 403
            assert client.get("/", headers=other).status_code == 200
            assert client.get("/info", headers=other | {"sec-fetch-dest": "document"}).status_code == 200
        assert client.get("/info", headers={"sec-fetch-site": "same-origin"}).status_code == 200


def test_an_unexpected_failure_is_one_answer_in_one_sentence() -> None:
    from starlette.testclient import TestClient

    guard, service, _ = local_app({}, lambda jobs: None, None, {})

    async def fail() -> None:
        raise ZeroDivisionError

    service.reload = fail
    with TestClient(guard, base_url="http://127.0.0.1:8080", raise_server_exceptions=False) as client:
        answer = client.post("/reload", json={})
    assert answer.status_code == 500
    assert "its log says why" in answer.json()["error"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_what_somebody_asked_who_has_left_is_not_searched(run_folder: Path) -> None:
    gate, searched = threading.Event(), []

    def note(jobs: list[dict[str, Any]]) -> None:
        searched.extend(question for job in jobs for question in job["queries"])
        gate.wait(patient(60))

    def ask(question: str) -> socket.socket:
        body = json.dumps({"queries": [question]})
        own = socket.create_connection(("127.0.0.1", port), timeout=patient(60))
        head = (
            "POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length:"
            f" {len(body)}\r\n\r\n"
        )
        own.sendall((head + body).encode())
        return own

    def wait(words: str) -> None:
        wait_until(lambda: words in urllib.request.urlopen(f"{address}metrics").read().decode())

    with listening({"run": run_folder}, before=note, modes="bm25") as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        with ask("first") as first:
            wait_until(lambda: searched)
            leaving, last = [ask("left") for _ in range(3)], ask("last")
            wait("dpr_requests_waiting 4.0")
            for own in leaving:
                own.close()
            wait("dpr_requests_waiting 1.0")
            gate.set()
            assert [own.recv(12) for own in (first, last)] == [b"HTTP/1.1 200"] * 2
            last.close()
        wait('dpr_requests_total{path="/search",status="499"} 3.0')
    assert searched == ["first", "last"]


def test_a_connection_that_stands_still_is_ended(run_folder: Path) -> None:
    with listening({"run": run_folder}, modes="bm25", timeout=0.5) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        for sent in (b"", b"GET / HTTP/1.1\r\nHost", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nG"):
            with socket.create_connection(("127.0.0.1", port), timeout=patient(20)) as own:
                own.sendall(sent)
                try:
                    while own.recv(65536):
                        pass
                except ConnectionResetError:
                    pass
