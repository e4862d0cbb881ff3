"""``dpr serve`` answers what ``dpr search`` finds, at every address, and refuses the rest in one sentence."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import InputError
from dpr.formats.vector_shards import VectorShard, VectorShardWriter
from dpr.retrieval.passages import PassageLookup
from dpr.retrieval.retriever import Retriever
from dpr.serving.settings import ServeSettings
from tests.helpers.serving import served
from tests.unit.retrieval.conftest import World


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
