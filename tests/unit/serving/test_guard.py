"""What a service refuses by the head of a request, and a body that does not arrive."""

import socket
from pathlib import Path

from tests.helpers.patience import patient
from tests.helpers.serving import listening, served


def sent(address: str, text: bytes) -> bytes:
    """What is answered to these bytes, until the other side closes or nothing more comes."""
    port = int(address.rstrip("/").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=patient(20)) as own:
        own.sendall(text)
        found = b""
        while chunk := own.recv(65536):
            found += chunk
        return found


def test_odd_requests_are_answered_in_one_sentence(run_folder: Path) -> None:
    with listening({"run": run_folder}, modes="bm25", timeout=0.5) as address:
        for head, status, words in (
            (b"OPTIONS * HTTP/1.1\r\nHost: localhost", b"404", b"there is nothing at *"),
            (b"GET /nothing HTTP/1.1\r\nHost: [::1x", b"404", b"there is nothing"),
            (b"GET /info HTTP/1.1\r\nHost: evil_host!.example", b"421", b"localhost only"),
            (b"GET /info HTTP/1.1\r\nHost: localhost.evil.example", b"421", b"localhost only"),
            (b"GET /nothing HTTP/1.1\r\nHost: [::1]:8080", b"404", b"there is nothing"),
            (b"POST /healthz HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0", b"405", b"not allowed"),
            (b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9", b"408", b"within 0.5 s"),
        ):
            answer = sent(address, head + b"\r\nConnection: close\r\n\r\n")
            assert answer.split()[1] == status, answer
            assert words in answer and b"x-content-type-options: nosniff" in answer


def test_a_page_of_another_address_cannot_make_it_work(run_folder: Path) -> None:
    with served({"run": run_folder}, modes="bm25") as client:
        for site in ("cross-site", "same-site"):
            other = {"sec-fetch-site": site, "sec-fetch-dest": "empty"}
            assert client.get("/info", headers=other).status_code == 403
            assert client.post("/search", json={}, headers=other).status_code == 403
            assert client.get("/", headers=other).status_code == 200
            assert client.get("/info", headers=other | {"sec-fetch-dest": "document"}).status_code == 200
        assert client.get("/info", headers={"sec-fetch-site": "same-origin"}).status_code == 200
