"""Vectors are joined with their passages: every row once, in order, whatever the chunks and shards."""

import json
from pathlib import Path

import numpy as np
import pytest

from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from tests.helpers.jobs import export as main
from tests.helpers.stores import METADATA, fields_of, open_rows, passages, vectors, write_inputs


def test_every_row_has_its_vector_texts_and_metadata(tmp_path: Path) -> None:
    write_inputs(tmp_path, count=100)
    batches = list(open_rows(tmp_path).batches())
    assert [key for batch in batches for key in batch.ids] == [item.id for item in passages(100)]
    np.testing.assert_array_equal(np.concatenate([batch.vectors for batch in batches]), vectors(100, 16))
    for name in ("title", "text", *METADATA):
        found = [value for batch in batches for value in batch.columns[name]]
        assert found == [row[name] for row in fields_of(100)], name


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float16", np.float16), ("float32", np.float32), ("int8", np.float32)]
)
def test_vectors_keep_float16_and_codes_are_decoded(tmp_path: Path, dtype: str, expected: type) -> None:
    write_inputs(tmp_path, count=50, dtype=dtype)
    found = np.concatenate([batch.vectors for batch in open_rows(tmp_path).batches()])
    assert found.dtype == expected
    np.testing.assert_allclose(found, vectors(50, 16), rtol=0, atol=0 if dtype != "int8" else 0.01)


def test_passages_without_a_vector_are_left_out_and_prefixes_are_added(tmp_path: Path) -> None:
    write_inputs(tmp_path, count=50)
    more = [
        item
        for passage in passages(50)
        for item in (passage, Passage("not embedded", "", f"other {passage.id}"))
    ]
    write_passages(tmp_path / "more.jsonl", more)
    rows = open_rows(
        tmp_path, sources=[PassageSource(tmp_path / "more.jsonl", id_prefix="wiki:")], metadata={}
    )
    assert [key for part in rows.batches() for key in part.ids] == [f"wiki:{one.id}" for one in passages(50)]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("int", "1999", "year is the string '1999', expected int"),
        ("int", True, "year is the boolean True, expected int"),
        ("int", 2**63, "year is the number 9223372036854775808, expected int"),
        ("text", 3, "year is the number 3, expected text"),
    ],
)
def test_metadata_of_another_kind_names_the_line(
    tmp_path: Path, kind: str, value: object, message: str
) -> None:
    write_inputs(tmp_path, count=5, shards=1)
    lines = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    for line in lines:
        del line["year"]
    lines[3]["year"] = value
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match=f"corpus.jsonl:4: .*{message}"):
        list(open_rows(tmp_path, metadata={"year": kind}).batches())


ROWS = "to=lancedb vectors=vectors_* out=store"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inputs(tmp_path, count=50)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_shards_become_a_store_and_a_second_command_does_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lancedb = pytest.importorskip("lancedb", reason="lancedb is in the extra stores")
    columns = "ctx_datasets=[corpus.jsonl] metadata=[year:int,place]"
    line = f"{ROWS} {columns}".split()
    assert main(line) == 0
    table = lancedb.connect(str(here / "store")).open_table("passages").to_arrow()
    assert table.schema.names == ["id", "vector", "title", "text", "year", "place"]
    assert table["id"].to_pylist() == [item.id for item in passages(50)]
    assert table["year"].to_pylist()[:2] == [1900, 1901]
    assert "lancedb holds 50 vectors of 16 dimensions" in capsys.readouterr().err
    assert main(line) == 0
    assert "holds" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("to=lancedb out=store", 2, "vectors is not set, e.g. vectors=runs/first/vectors_*"),
        (f"{ROWS} metadata=[year]", 2, "ctx_datasets is not set; metadata is read from the passages"),
        (f"{ROWS} ctx_datasets=corpus.jsonl metadata=[year:date]", 2, "metadata: 'year:date' is no column"),
        (f"{ROWS} ctx_datasets=corpus.jsonl metadata=[text]", 2, "metadata: 'text' is no column"),
        (f"{ROWS} table=a;b", 2, "table='a;b' is not a name"),
        ("to=lancedb vectors=vectors_0 out=store", 3, "of 3 shards, these are missing: 1, 2"),
        (f"{ROWS} ctx_datasets=none.jsonl", 2, "none.jsonl: there is no such file"),
        ("to=lancedb vectors=vectors_* out=corpus.jsonl", 3, "corpus.jsonl"),
    ],
)
def test_mistakes_are_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], line: str, code: int, message: str
) -> None:
    before = sorted(path.name for path in here.iterdir())
    assert main(line.split()) == code
    captured = capsys.readouterr().err
    assert message in captured and "Traceback" not in captured
    assert sorted(path.name for path in here.iterdir()) == before
