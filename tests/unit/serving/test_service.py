"""``dpr serve`` answers what ``dpr search`` finds, at every address, and refuses the rest in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpr.assembly.search import open_searcher, search_settings
from tests.helpers.serving import served
from tests.unit.retrieval.conftest import World

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("prometheus_client", reason="the extra serve is not installed")


@pytest.fixture(scope="module")
def client(run_folder: Path) -> Iterator[Any]:
    with served({"run": run_folder}) as found:
        yield found


def test_every_mode_finds_what_dpr_search_finds(client: Any, run_folder: Path, world: World) -> None:
    questions = [question.text for question in world.questions[:4]]
    for mode in ("dense", "bm25", "hybrid"):
        searcher = open_searcher(search_settings(run_folder, mode=mode), device="cpu")
        answer = client.post("/search", json={"queries": questions, "index": f"run:{mode}", "k": 3})
        assert answer.status_code == 200, answer.text
        for question, hits in zip(questions, answer.json()["results"], strict=True):
            expected = searcher.search(question, 3)
            assert [(hit["id"], hit["title"], hit["text"]) for hit in hits] == [
                (hit.passage.id, hit.passage.title, hit.passage.text) for hit in expected
            ]
            assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-6)


def test_agents_trainers_and_pyserinis_clients_get_their_shapes(client: Any, world: World) -> None:
    first = client.post("/search", json={"queries": [world.questions[0].text], "k": 2}).json()["results"][0]
    asked = {"queries": [world.questions[0].text], "topk": 2, "return_scores": True}
    assert client.post("/retrieve", json=asked).json() == {
        "result": [[{"document": {"id": hit["id"], "contents": f"{hit['title']}\n{hit['text']}"}, "score": hit["score"]} for hit in first]]
    }
    assert [set(document) for document in client.post("/retrieve", json={"queries": ["ka"]}).json()["result"][0]] == [
        {"id", "contents"}
    ] * 3
    found = client.get("/v1/run/search", params={"query": world.questions[0].text, "hits": 2}).json()
    assert (found["api"], found["index"], found["query"]) == ("v1", "run", {"text": world.questions[0].text})
    assert [(item["docid"], item["score"], item["rank"]) for item in found["candidates"]] == [
        (hit["id"], hit["score"], rank) for rank, hit in enumerate(first, 1)
    ]
    document = client.get("/v1/run/doc/p003").json()["doc"]
    assert document == {"id": "p003", "contents": f"{world.passages[3].title}\n{world.passages[3].text}"} | {
        "title": world.passages[3].title,
        "text": world.passages[3].text,
    }
    assert client.get("/doc", params={"id": "p003"}).json()["text"] == world.passages[3].text


def test_info_names_what_is_served(client: Any) -> None:
    info = client.get("/info").json()
    assert [(item["name"], item["mode"], item["default"]) for item in info["indexes"]] == [
        ("run", "hybrid", True),
        ("run:dense", "dense", False),
        ("run:bm25", "bm25", False),
    ]
    assert all(item["passages"] == 60 and item["exact"] for item in info["indexes"])
    assert len({item["fingerprint"] for item in info["indexes"]}) == 3
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
