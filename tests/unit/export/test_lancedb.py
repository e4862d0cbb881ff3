"""A real LanceDB: filled, killed and filled again, it finds what exact search finds."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.core.errors import InputError
from dpr.embedding.source import PassageSource
from dpr.export.lancedb import load_lance
from dpr.indexer.exact import ExactIndex
from tests.helpers.stores import (
    assert_same_but_for_ties,
    fields_of,
    load_and_die,
    open_rows,
    passages,
    vectors,
    write_inputs,
)

pytestmark = pytest.mark.skipif(find_spec("lancedb") is None, reason="lancedb is in the extra stores")


def connect(address: str) -> Any:
    """Imports lancedb late, since that takes five seconds."""
    import lancedb

    return lancedb.connect(address)


COUNT = 300
LOAD = "dpr.export.lancedb:load_lance"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder, count=COUNT)
    return folder


def assert_finds_what_exact_search_finds(address: Path, folder: Path, *, tolerance: float = 1e-5) -> None:
    queries = np.random.default_rng(1).normal(size=(200, 16)).astype(np.float32)
    rows = open_rows(folder)
    _, expected = ExactIndex(list(rows.shards)).search(queries, 100)
    products = vectors(COUNT, 16) @ queries.T
    scores = {str(item.id): products[number] for number, item in enumerate(passages(COUNT))}
    table = connect(str(address)).open_table("passages")
    found: list[list[str]] = [[] for _ in queries]
    for row in (
        table.search(list(queries)).distance_type("dot").select(["id", "_distance"]).limit(100).to_list()
    ):
        found[row["query_index"]].append(row["id"])
        assert abs(1 - row["_distance"] - scores[row["id"]][row["query_index"]]) <= tolerance
    assert_same_but_for_ties(found, expected, scores, tolerance=tolerance)


def test_200_questions_find_what_exact_search_finds(inputs: Path, tmp_path: Path) -> None:
    assert load_lance(open_rows(inputs), str(tmp_path), "passages")
    assert_finds_what_exact_search_finds(tmp_path, inputs)
    table = connect(str(tmp_path)).open_table("passages")
    assert table.to_arrow().drop(["vector"]).to_pylist() == fields_of(COUNT)
    version = table.version
    assert not load_lance(open_rows(inputs), str(tmp_path), "passages")
    assert connect(str(tmp_path)).open_table("passages").version == version
    (row,) = (
        table.search(vectors(COUNT, 16)[7])
        .distance_type("dot")
        .where("year = 1999", prefilter=True)
        .limit(5)
        .to_list()
    )
    assert row["id"] == passages(COUNT)[99].id


def test_a_killed_load_is_finished_by_the_same_command(inputs: Path, tmp_path: Path) -> None:
    load_and_die(LOAD, inputs, 150, str(tmp_path), "passages")
    assert load_lance(open_rows(inputs), str(tmp_path), "passages")
    table = connect(str(tmp_path)).open_table("passages")
    assert table.count_rows() == len(set(table.to_arrow()["id"].to_pylist())) == COUNT
    assert_finds_what_exact_search_finds(tmp_path, inputs)


def test_half_precision_stays_half(tmp_path: Path) -> None:
    write_inputs(tmp_path / "in", count=COUNT, dtype="float16")
    load_lance(open_rows(tmp_path / "in", sources=(), metadata={}), str(tmp_path / "db"), "passages")
    table = connect(str(tmp_path / "db")).open_table("passages")
    assert str(table.schema.field("vector").type) == "fixed_size_list<item: halffloat>[16]"
    assert_finds_what_exact_search_finds(tmp_path / "db", tmp_path / "in", tolerance=5e-3)


def test_a_table_of_something_else_is_left_alone(inputs: Path, tmp_path: Path) -> None:
    database = connect(str(tmp_path))
    database.create_table("others", [{"id": "a"}])
    with pytest.raises(
        InputError, match="others: already exists, made of something else; choose another table="
    ):
        load_lance(open_rows(inputs), str(tmp_path), "others")
    load_lance(open_rows(inputs), str(tmp_path), "mine")
    with pytest.raises(InputError, match="already exists, made of something else"):
        load_lance(open_rows(inputs, metadata={}), str(tmp_path), "mine")
    database.open_table("mine").delete("year = 1900")
    with pytest.raises(
        InputError, match="holds 299 rows, expected 300, one a vector; rows were added or removed"
    ):
        load_lance(open_rows(inputs), str(tmp_path), "mine")


def test_what_is_wrong_with_the_rows_is_what_is_said(inputs: Path, tmp_path: Path) -> None:
    lines = (inputs / "corpus.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "corpus.jsonl").write_text("".join([*lines[:100], *lines[101:]]))
    with pytest.raises(InputError, match=r"no passage 'p. 100' after those"):
        load_lance(
            open_rows(inputs, sources=[PassageSource(tmp_path / "corpus.jsonl")]),
            str(tmp_path / "db"),
            "passages",
        )
    assert load_lance(open_rows(inputs), str(tmp_path / "db"), "passages")
