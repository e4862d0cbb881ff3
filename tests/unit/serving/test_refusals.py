"""What a service does not answer gets a 4xx, or a 503 where trying again helps, and one sentence; a worker's
death costs nobody else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.serving import die, served, wait_until
from tests.unit.retrieval.conftest import World

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client(run_folder: Path) -> Iterator[Any]:
    with served(
        {"run": run_folder},
        max_queries=4,
        max_k=50,
        max_passages=100,
        max_question=100,
        max_body=2000,
        modes="bm25",
    ) as found:
        yield found


BAD_BODIES = [
    ("{", "not JSON"),
    ("", "missing"),
    ("[]", "the body"),
    ("[" * 1500, "nested too deeply"),
    ('{"queries": ["a"], "k": NaN}', "k: "),
    ('{"queries": []}', "queries"),
    ('{"queries": "ka"}', "queries"),
    ('{"queries": [1]}', "queries.0"),
    ('{"queries": [null]}', "queries.0"),
    ('{"queries": ["ka"], "k": 0}', "k: "),
    ('{"queries": ["ka"], "k": 51}', "max_k=50"),
    (
        '{"queries": ["ka", "ka", "ka"], "k": 34}',
        "34 passages for each of 3 questions, expected at most max_passages=100",
    ),
    (
        '{"queries": ["ka"], "k": 11, "explain": true}',
        "explain=true for 11 passages, expected at most max_passages / 10",
    ),
    ('{"queries": ["ka"], "k": 1e9}', "k: "),
    ('{"queries": ["ka"], "k": true}', "k: "),
    ('{"queries": ["ka"], "top": 3}', "top is not known"),
    ('{"queries": [" "]}', "empty"),
    ('{"queries": ["\\ud800"]}', "queries.0"),
    ('{"queries": ["ka"], "index": "\\ud800"}', "index holds half"),
    ('{"queries": ["a", "a", "a", "a", "a"]}', "max_queries=4"),
    ('{"queries": ["' + "a" * 101 + '"]}', "max_question=100"),
    ('{"query": "ka"}', "queries is missing"),
]


@pytest.mark.parametrize(("body", "words"), BAD_BODIES)
def test_a_bad_body_gets_one_sentence(client: Any, body: str, words: str) -> None:
    answer = client.post("/search", content=body.encode(), headers=JSON)
    assert answer.status_code in (400, 422), answer.text
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    "body", [b"[" * 1000, '{"queries": [[['.encode("utf-16-le") + b"[\0" * 300, b'{"queries": ["\xff"]}']
)
def test_a_body_nested_too_deeply_is_refused_whatever_the_interpreter_allows(
    client: Any, body: bytes
) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        answer = client.post("/search", content=body, headers=JSON)
    finally:
        sys.setrecursionlimit(limit)
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": "the body is not JSON in UTF-8, or is nested too deeply"},
    )


def test_what_is_not_there_is_404_and_says_what_is(client: Any) -> None:
    answer = client.post("/search", json={"queries": ["ka"], "index": "other"})
    assert answer.status_code == 404
    assert "/info lists run, run:bm25" in answer.json()["error"]
    for path in (
        "/v1/other/search?query=ka",
        "/doc?id=none",
        "/v1/run/doc/a/b",
        "/nothing",
        "/page/none.js",
        "/page/../settings.py",
    ):
        answer = client.get(path)
        assert (answer.status_code, list(answer.json())) == (404, ["error"]), path
    refused = client.get("/search")
    assert (refused.status_code, refused.json()) == (405, {"error": "GET is not allowed here"})
    assert client.get("/v1/run/search").status_code == 422


def test_types_sizes_and_names_are_checked_before_anything_is_read(client: Any) -> None:
    assert (
        client.post(
            "/search", content=b'{"queries": ["ka"]}', headers={"content-type": "text/plain"}
        ).status_code
        == 415
    )
    assert client.post("/search", content=b" " * 2001, headers=JSON).status_code == 413
    pieces = (b" " * 500 for _ in range(10))  # of unstated length
    assert client.post("/search", content=pieces, headers=JSON).status_code == 413
    # A page of another site whose name points to this machine.
    assert client.get("/info", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/info", headers={"host": "[::1]:8080"}).status_code == 200


def test_a_token_is_asked_for_everywhere_but_at_health_and_page(run_folder: Path) -> None:
    with served({"run": run_folder}, token="secret", modes="bm25") as client:
        for method, path in (
            ("get", "/info"),
            ("post", "/search"),
            ("post", "/reload"),
            ("get", "/metrics"),
            ("get", "/doc?id=p001"),
        ):
            for headers in ({}, {"authorization": "Bearer other"}, {"authorization": "secret"}):
                answer = getattr(client, method)(path, headers=headers)
                assert answer.status_code == 401, path
                assert answer.headers["www-authenticate"] == "Bearer"
        allowed = {"authorization": "Bearer secret", "host": "search.example"}
        assert client.get("/info", headers=allowed).status_code == 200
        assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/")] == [200, 200, 200]


def test_a_full_service_says_when_to_come_again(run_folder: Path, world: World) -> None:
    gate = threading.Event()
    with (
        ThreadPoolExecutor(4) as pool,
        served(
            {"run": run_folder}, before=lambda jobs: gate.wait(20) and None, max_concurrent=2, modes="bm25"
        ) as client,
    ):
        body = {"queries": [world.questions[0].text]}
        waiting = [pool.submit(client.post, "/search", json=body) for _ in range(2)]
        wait_until(lambda: "dpr_requests_at_work 2.0" in client.get("/metrics").text)
        refused = client.post("/search", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert client.get("/healthz").status_code == 200
        gate.set()
        assert [answer.result().status_code for answer in waiting] == [200, 200]
        assert client.post("/search", json=body).status_code == 200


def test_what_queued_is_searched_together(run_folder: Path, world: World) -> None:
    gate, batches = threading.Event(), []

    def note(jobs: list[dict[str, Any]]) -> None:
        batches.append(len(jobs))
        gate.wait(20)

    with ThreadPoolExecutor(8) as pool, served({"run": run_folder}, before=note, batch=6) as client:
        questions = [question.text for question in world.questions[:8]]
        asked = [
            pool.submit(client.post, "/search", json={"queries": [question], "k": 2})
            for question in questions[:1]
        ]
        wait_until(lambda: batches)
        asked += [
            pool.submit(client.post, "/search", json={"queries": [question], "k": 2})
            for question in questions[1:]
        ]
        wait_until(lambda: "dpr_requests_waiting 7.0" in client.get("/metrics").text)
        gate.set()
        together = [answer.result().json()["results"][0] for answer in asked]
        assert batches == [1, 6, 1]
        alone = client.post("/search", json={"queries": questions, "k": 2}).json()["results"]
    for one, other in zip(together, alone, strict=True):
        assert [hit["id"] for hit in one] == [hit["id"] for hit in other]
        assert [hit["score"] for hit in one] == pytest.approx([hit["score"] for hit in other], abs=1e-6)


def test_a_question_that_ends_its_worker_fails_alone(run_folder: Path, world: World) -> None:
    gate, is_first = threading.Event(), [True]

    def act(jobs: list[dict[str, Any]]) -> None:
        if is_first.pop() if is_first else False:
            gate.wait(20)
        die(jobs)

    with ThreadPoolExecutor(8) as pool, served({"run": run_folder}, before=act, modes="bm25") as client:
        questions = ["ka no", "deadly", *(question.text for question in world.questions[:4])]
        asked = [
            pool.submit(client.post, "/search", json={"queries": [question]}) for question in questions[:1]
        ]
        wait_until(lambda: not is_first)  # it is at work alone, so that all others wait for one batch
        asked += [
            pool.submit(client.post, "/search", json={"queries": [question]}) for question in questions[1:]
        ]
        wait_until(lambda: "dpr_requests_waiting 5.0" in client.get("/metrics").text)
        gate.set()
        answers = dict(zip(questions, (answer.result() for answer in asked), strict=True))
        assert answers["deadly"].status_code == 503
        assert "died twice" in answers["deadly"].json()["error"]
        assert {answer.status_code for question, answer in answers.items() if question != "deadly"} == {200}
        wait_until(lambda: "dpr_worker_restarts 2.0" in client.get("/metrics").text)


def test_a_worker_that_dies_again_and_again_is_said_to(run_folder: Path) -> None:
    with served({"run": run_folder}, before=die, pause=3600, modes="bm25") as client:
        assert client.post("/search", json={"queries": ["deadly"]}).status_code == 503
        said = "a worker has ended soon after its start, 2 times in a row; the service's log says why"
        for answer in (client.get("/readyz"), client.post("/search", json={"queries": ["ka"]})):
            assert (answer.status_code, answer.json()["error"]) == (503, said)
        assert client.get("/healthz").status_code == 200


def test_a_slow_answer_is_refused_in_time(run_folder: Path) -> None:
    gate = threading.Event()
    with served(
        {"run": run_folder}, before=lambda jobs: gate.wait(20) and None, timeout=0.05, modes="bm25"
    ) as client:
        answer = client.post("/search", json={"queries": ["ka"]})
        assert (answer.status_code, answer.json()) == (503, {"error": "there was no answer within 0.05 s"})
        gate.set()
