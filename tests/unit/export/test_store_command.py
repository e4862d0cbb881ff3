"""``dpr export to=<store>``: from shards that ``dpr embed`` wrote, and every mistake is one sentence."""

from pathlib import Path

import pytest

from tests.helpers.jobs import export as main
from tests.helpers.stores import passages, write_inputs

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
        ("to=lancedb vectors=vectors_*", 2, "out is not set"),
        (f"{ROWS} metadata=[year]", 2, "ctx_datasets is not set; metadata is read from the passages"),
        (f"{ROWS} ctx_datasets=corpus.jsonl metadata=[year:date]", 2, "metadata: 'year:date' is no column"),
        (f"{ROWS} ctx_datasets=corpus.jsonl metadata=[text]", 2, "metadata: 'text' is no column"),
        (f"{ROWS} ctx_datasets=corpus.jsonl metadata=[a,a:int]", 2, "metadata: 'a:int' is no column"),
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
