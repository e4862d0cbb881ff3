"""A filtered search is the whole search with the other passages left out: the same scores."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpr.embedding.source import PassageSource
from dpr.indexer.ranking import encode_ids, is_among
from dpr.retrieval.filters import PassageFields
from dpr.retrieval.retriever import Retriever
from dpr.retrieval.search_json import SearchSettings
from tests.helpers.serving import Gate, asked_together, served
from tests.unit.retrieval.conftest import World


@pytest.fixture(scope="module")
def client(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Passages with a section and, half of them, a year, searched through an approximate index."""
    folder = tmp_path_factory.mktemp("filters") / "run"
    rows = [
        {"id": one.id, "title": one.title, "text": one.text, "section": "ab"[number % 2]}
        | ({"year": 2000 + number % 5} if number < 30 else {})
        for number, one in enumerate(world.passages)
    ]
    Retriever.build(world.model, rows, folder=folder, indexer="hnsw")
    assert SearchSettings.read(folder).indexer.kind == "hnsw"
    with served({"run": folder}, metadata="section,year:int") as found:
        yield found


@pytest.mark.parametrize(
    ("number", "size", "is_listed"), [(100, 200, True), (101, 1, False), (2, 201, False)]
)
def test_values_are_listed_where_they_are_few_and_short(
    tmp_path: Path, number: int, size: int, is_listed: bool
) -> None:
    values = sorted(f"{place:03d}".rjust(size, "x") for place in range(number))
    lines = (
        json.dumps({"_id": str(place), "text": "", "name": value})
        for place, value in enumerate([*reversed(values), values[0]])
    )
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    fields = PassageFields({"name": "text"}, PassageSource(tmp_path / "c.jsonl").read())
    assert fields.choices() == {"name": values if is_listed else None}


@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid"])
def test_filters_choose_by_ids_and_fields(client: Any, world: World, mode: str) -> None:
    def found(wanted: dict[str, Any] | None) -> list[tuple[str, float]]:
        body = {"queries": [world.questions[0].text], "index": f"run:{mode}", "k": 60} | (
            {"filter": wanted} if wanted else {}
        )
        answer = client.post("/search", json=body)
        assert answer.status_code == 200, answer.text
        return [(hit["id"], hit["score"]) for hit in answer.json()["results"][0]]

    whole = found(None)
    for wanted, numbers in (
        ({"metadata": {"section": "a"}}, range(0, 60, 2)),
        ({"metadata": {"section": "a", "year": [2000, 2003, 1999]}}, [0, 8, 10, 18, 20, 28]),
        ({"ids": ["p002", "p004", "p005", "unknown"], "metadata": {"section": "a"}}, [2, 4]),
        ({"metadata": {"year": 1999}}, []),
        ({"metadata": {"year": {"gte": 2001, "not": 2004}}}, [n for n in range(30) if n % 5 in (1, 2, 3)]),
        *(({"ids": [unknown]}, []) for unknown in ("unknown", "p001\0", "x" * 1024, "\u00e9" * 1024)),
    ):
        expected = {f"p{number:03d}" for number in numbers}
        part = found(wanted)
        if mode == "hybrid":  # its scores depend on the lists that are fused
            assert {key for key, _ in part} == expected
        else:
            assert part == [(key, pytest.approx(score, abs=1e-6)) for key, score in whole if key in expected]


def test_requests_of_one_batch_keep_their_own_filter_and_depth(run_folder: Path, world: World) -> None:
    gate = Gate()
    asked = {"queries": [world.questions[0].text], "index": "run:dense", "texts": False}
    others = [{"metadata": {"none": 1}}, {"ids": ["p001", "p002"]}]
    bodies = [asked | {"k": 3}, asked | {"k": 2}, *(asked | {"k": 3, "filter": one} for one in others)]
    with served({"run": run_folder}, before=gate, modes="dense") as client:
        requests = [("/search", body) for body in (asked | {"k": 1}, *bodies, *bodies)]
        together = asked_together(client, gate, *requests)
        # each two that are alike together, and those whose filter is refused also alone
        assert sorted(len(questions) for questions in gate.searched[1:]) == [1, 1, 2, 2, 2, 2]
        alone = [client.post(path, json=body) for path, body in requests]
    assert [answer.json() for answer in together] == [answer.json() for answer in alone]
    assert [answer.status_code for answer in together] == [200, *[200, 200, 422, 200] * 2]
    assert [len(together[row].json()["results"][0]) for row in (1, 2, 4)] == [3, 2, 2]


def test_a_long_id_does_not_make_all_ids_as_long() -> None:
    ids = encode_ids([f"p{number:05d}" for number in range(20_000)])
    tracemalloc.start()
    found = is_among(ids, encode_ids(["p00007", "p00008" + "x" * 1000]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.flatnonzero(found).tolist() == [7]
    assert peak < 2 * 2**20


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"metadata": {"chapter": "a"}}, "no field 'chapter' to filter by, expected section, year"),
        ({"metadata": {"year": "2000"}}, "filter by year='2000', expected int"),
        ({"metadata": {"year": True}}, "expected int"),
        ({"metadata": {"year": {"$gte": 2000}}}, "expected the operators gt, gte, lt, lte, any, all, not"),
        ({}, "names neither ids nor metadata"),
        ({"ids": []}, "filter.ids"),
        ({"ids": [1]}, "filter.ids.0"),
        ({"id": ["p1"]}, "filter.id is not known"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused(client: Any, wanted: dict[str, Any], words: str) -> None:
    answer = client.post("/search", json={"queries": ["ka"], "filter": wanted})
    assert answer.status_code == 422
    assert words in answer.json()["error"]


def test_a_value_that_json_lacks_is_null_in_the_answer(tmp_path: Path) -> None:
    """NaN and infinity of a Parquet file, as a value and inside a list."""
    columns = {
        "id": ["a", "b"],
        "text": ["ka no", "ka po"],
        "year": [2000.0, np.nan],
        "marks": [[1.0, np.nan, np.inf], []],
    }
    pq.write_table(pa.table(columns), tmp_path / "corpus.parquet")
    Retriever.build(None, tmp_path / "corpus.parquet", folder=tmp_path / "run")
    with served({"run": tmp_path / "run"}, metadata="year:float,marks:float") as client:
        for wanted, ids in (
            ({"year": {"gte": 1}}, ["a"]),
            ({"marks": 1}, ["a"]),
            ({"year": {"not": 1}}, ["a", "b"]),
        ):
            answer = client.post("/search", json={"queries": ["ka"], "filter": {"metadata": wanted}})
            assert "NaN" not in answer.text
            hits = answer.json()["results"][0]
            assert sorted(hit["id"] for hit in hits) == ids
            found = {hit["id"]: hit["metadata"] for hit in hits}
            assert found["a"] == {"year": 2000, "marks": [1, None, None]}
            assert found.get("b", {"year": None, "marks": []}) == {"year": None, "marks": []}


def test_passages_that_another_process_adds_are_found_with_their_fields(world: World, tmp_path: Path) -> None:
    rows = [{"id": str(one.id), "text": one.text, "year": 2000} for one in world.passages[:5]]
    other = Retriever.build(None, rows, folder=tmp_path / "run")
    with served({"run": tmp_path / "run"}, metadata="year:int") as client:
        for key, number in (("new", 1), ("other", 2)):
            other.add([{"id": key, "text": "zebra", "year": 2020, "tags": ["x"]}])
            body = {"queries": ["zebra"], "filter": {"metadata": {"year": {"gt": 2010}}}}
            hits = client.post("/search", json=body).json()["results"][0]
            assert len(hits) == number and hits[-1]["id"] == key
            assert hits[0]["metadata"] == {"year": 2020, "tags": ["x"]}
            assert client.get("/info").json()["indexes"][0]["passages"] == 5 + number
