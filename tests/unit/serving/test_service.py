"""``dpr serve`` answers what ``dpr search`` finds; the rest gets a 4xx, or a 503 where trying again helps, and one sentence."""

import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import InputError
from dpr.formats.vector_shards import VectorShard, VectorShardWriter
from dpr.retrieval.passages import PassageLookup
from dpr.retrieval.retriever import Retriever
from dpr.serving.settings import ServeSettings
from tests.helpers.patience import patient
from tests.helpers.serving import Gate, asked_together, listening, served, wait_until
from tests.unit.retrieval.conftest import World

pytest.importorskip("fastapi", reason="the extra serve is not installed")


@pytest.fixture(scope="module")
def client(run_folder: Path) -> Iterator[Any]:
    with served({"run": run_folder}) as found:
        yield found


def test_every_mode_finds_what_dpr_search_finds(client: Any, run_folder: Path, world: World) -> None:
    questions = [question.text for question in world.questions[:4]]
    for mode in ("dense", "bm25", "hybrid"):
        searcher = Retriever.open(run_folder, mode=mode, device="cpu")
        answer = client.post("/search", json={"queries": questions, "index": f"run:{mode}", "k": 3})
        assert answer.status_code == 200, answer.text
        for question, hits in zip(questions, answer.json()["results"], strict=True):
            expected = searcher.search(question, 3)
            assert [(hit["id"], hit["title"], hit["text"]) for hit in hits] == [
                (hit.id, hit.title, hit.text) for hit in expected
            ]
            assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-6)


def test_info_names_what_is_served(client: Any) -> None:
    info = client.get("/info").json()
    assert [(item["name"], item["mode"]) for item in info["indexes"]] == [
        ("run", "hybrid"),
        ("run:dense", "dense"),
        ("run:bm25", "bm25"),
    ]
    assert all(item["passages"] == 60 and item["exact"] for item in info["indexes"])
    assert info["limits"]["texts"] == 2048
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_several_runs_are_served_beside_each_other(run_folder: Path) -> None:
    with served({"first": run_folder, "second": run_folder}, modes="dense") as client:
        names = [item["name"] for item in client.get("/info").json()["indexes"]]
        assert names == ["first", "first:dense", "second", "second:dense"]
        answers = [
            client.post("/search", json={"queries": ["ka no"], "index": name}).json() for name in names
        ]
        assert (
            answers[0]["results"] == answers[2]["results"] != answers[1]["results"] == answers[3]["results"]
        )
        assert [answer["index"] for answer in answers] == names


def test_an_explained_hit_says_where_it_is_from_and_why(client: Any, world: World) -> None:
    question = world.questions[3].text
    body = {"queries": [question], "index": "run", "k": 3, "explain": True, "texts": False}
    hits = client.post("/search", json=body).json()["results"][0]
    assert [hit["file"] for hit in hits] == ["corpus.tsv"] * 3
    assert all(hit["sides"].keys() == {"dense", "bm25"} and "text" not in hit for hit in hits)
    first = next(hit for hit in hits if hit["id"] == "p003")
    assert first["pieces"][1::2] and set(first["pieces"][1::2]) | set(first["title_pieces"][1::2]) == set(
        first["words"]
    )
    assert "".join(first["pieces"]) == world.passages[3].text


def test_a_corpus_that_changes_or_vanishes_is_no_fault_of_the_request(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PassageLookup.__init__.__kwdefaults__, "in_memory_bytes", 0)
    shutil.copytree(run_folder, folder := tmp_path / "run")
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    corpus = folder / "corpus.tsv"
    with served({"run": folder}, modes="bm25") as client:

        def answered() -> tuple[int, str]:
            answer = client.post("/search", json={"queries": ["ka"], "index": "run:bm25", "k": 1})
            return answer.status_code, answer.json().get("error", "")

        assert answered() == (200, "")
        corpus.write_text(corpus.read_text() + "new\tka ka\troad\n")
        assert answered()[0] == 500 and "corpus.tsv: has changed since it was opened" in answered()[1]
        assert "restart the service" in answered()[1]
        corpus.rename(folder / "away")
        assert answered()[0] == 500 and "corpus.tsv: cannot be read: No such file" in answered()[1]
        (folder / "away").rename(corpus)
    from dpr.serving.engine import open_runs

    with pytest.raises(InputError, match="vectors of another corpus"):
        list(open_runs({"run": folder}, ServeSettings(modes="bm25")))


def test_vectors_that_others_replace_are_not_searched(run_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run_folder, folder := tmp_path / "run")
    with served({"run": folder}, modes="dense") as client:

        def answered() -> tuple[int, Any]:
            answer = client.post("/search", json={"queries": ["ka no"], "index": "run:dense", "texts": False})
            return answer.status_code, answer.json()

        assert answered()[0] == 200
        shard = VectorShard(folder / "vectors_0")
        writer = VectorShardWriter(
            folder / "new", metadata=_own(shard), dimension=shard.dimension, dtype=shard.dtype
        )
        for number, (ids, vectors) in enumerate(shard.chunks()):
            writer.write_chunk(number, [key.decode() for key in ids.tolist()], -vectors)
        writer.finish()
        shutil.rmtree(folder / "vectors_0")
        status, told = answered()
        assert status == 500 and "vectors_0" in told["error"] and "restart the service" in told["error"]
        (folder / "new").rename(folder / "vectors_0")
        status, told = answered()
        assert status == 500 and "manifest.json: has changed since it was opened)" in told["error"]


def _own(shard: VectorShard) -> Any:
    return {
        key: value
        for key, value in shard.metadata.items()
        if key not in ("num_vectors", "num_chunks", "dimension", "dtype")
    }


JSON = {"content-type": "application/json"}


BAD_BODIES = [
    ("{", "not JSON"),
    ('{"queries": ["a"], "k": NaN}', "k: "),
    ('{"queries": ["ka"], "k": 1001}', "k: input should be less than or equal to 1000"),
    (
        '{"queries": [' + ", ".join(['"ka"'] * 101) + '], "k": 1000}',
        "101000 passages in all, expected at most 100000",
    ),
    (
        '{"queries": [' + ", ".join(['"ka"'] * 11) + '], "k": 1000, "explain": true}',
        "110000 passages in all, where each explained one counts as 10, expected at most 100000",
    ),
    ('{"queries": ["ka"], "top": 3}', "top is not known"),
    ('{"queries": [" "]}', "empty"),
    ('{"queries": ["\\ud800"]}', "hex escape"),
    ('{"queries": [' + ", ".join(['"a"'] * 2049) + "]}", "at most 2048 items"),
    ('{"queries": ["' + "a" * 8193 + '"]}', "queries.0: string should have at most 8192 characters"),
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
def test_a_body_nested_too_deeply_is_refused_whatever_python_allows(client: Any, body: bytes) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        answer = client.post("/search", content=body, headers=JSON)
    finally:
        sys.setrecursionlimit(limit)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("the body is not JSON: ")


def test_what_is_not_there_is_404_and_says_what_is(client: Any) -> None:
    answer = client.post("/search", json={"queries": ["ka"], "index": "other"})
    assert answer.status_code == 404
    assert "/info lists run, run:bm25, run:dense" in answer.json()["error"]
    for path in ("/v1/run/search?query=ka", "/reload", "/nothing", "/page/none.js", "/page/../settings.py"):
        answer = client.get(path)
        assert (answer.status_code, list(answer.json())) == (404, ["error"]), path
    refused = client.get("/search")
    assert (refused.status_code, refused.json()) == (405, {"error": "GET is not allowed here"})


def test_sizes_are_checked(client: Any) -> None:
    assert client.post("/search", content=b" " * (8 * 2**20 + 1), headers=JSON).status_code == 413
    pieces = (b" " * 2**18 for _ in range(33))  # of unstated length
    assert client.post("/search", content=pieces, headers=JSON).status_code == 413


def test_a_token_is_asked_for_everywhere_but_at_health_and_page(run_folder: Path) -> None:
    with served({"run": run_folder}, token="secret", modes="bm25") as client:
        for method, path in (
            ("get", "/info"),
            ("post", "/search"),
            ("get", "/metrics"),
            ("post", "/v1/embeddings"),
        ):
            for headers in ({}, {"authorization": "Bearer other"}, {"authorization": "secret"}):
                answer = getattr(client, method)(path, headers=headers)
                assert answer.status_code == 401, path
                assert answer.headers["www-authenticate"] == "Bearer"
        allowed = {"authorization": "Bearer secret", "host": "search.example"}
        assert client.get("/info", headers=allowed).status_code == 200
        assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/")] == [200, 200, 200]


def test_a_full_service_says_when_to_come_again(
    run_folder: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpr.serving.app import LIMITS

    monkeypatch.setitem(LIMITS, "requests", 2)
    gate, batches = threading.Event(), []

    def note(questions: list[str]) -> None:
        batches.append(len(questions))
        gate.wait(60)

    with ThreadPoolExecutor(4) as pool, served({"run": run_folder}, before=note, modes="bm25") as client:
        body = {"queries": [world.questions[0].text]}
        waiting = [pool.submit(client.post, "/search", json=body)]
        wait_until(lambda: batches)  # else one batch could take both
        waiting.append(pool.submit(client.post, "/search", json=body))
        wait_until(lambda: "dpr_requests_waiting 1.0" in client.get("/metrics").text)
        refused = client.post("/search", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert client.get("/healthz").status_code == 200
        gate.set()
        assert [answer.result().status_code for answer in waiting] == [200, 200]
        assert client.post("/search", json=body).status_code == 200


def test_what_queued_is_searched_together(
    run_folder: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpr.serving.engine.TEXTS_AT_ONCE", 6)
    gate = Gate()
    asked = [("/search", {"queries": [question.text], "k": 2}) for question in world.questions[:8]]
    with served({"run": run_folder}, before=gate) as client:
        together = [answer.json()["results"][0] for answer in asked_together(client, gate, *asked)]
        assert [len(questions) for questions in gate.searched] == [1, 6, 1]
        alone = [client.post(path, json=body).json()["results"][0] for path, body in asked]
    for in_batch, by_itself in zip(together, alone, strict=True):
        assert [hit["id"] for hit in in_batch] == [hit["id"] for hit in by_itself]
        scores = [hit["score"] for hit in by_itself]
        assert [hit["score"] for hit in in_batch] == pytest.approx(scores, abs=1e-6)


def test_a_slow_answer_is_refused_in_time(run_folder: Path) -> None:
    gate = threading.Event()
    with served({"run": run_folder}, before=lambda _: gate.wait(20), timeout=0.5, modes="bm25") as client:
        answer = client.post("/search", json={"queries": ["ka"]})
        assert (answer.status_code, answer.json()) == (503, {"error": "there was no answer within 0.5 s"})
        gate.set()


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
