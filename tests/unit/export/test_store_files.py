"""Folders for other programs hold every row once, say so, and are finished by a second run after a kill."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpr.core.errors import InputError
from dpr.export.stores.files import FILE_FORMATS, point_id, write_files
from dpr.storage.durable import read_manifest, verify_folder
from tests.helpers.stores import METADATA, load_and_die, open_rows, passages, record, vectors, write_inputs

COUNT = 300
WRITE = "tests.unit.export.test_store_files:write_named"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder, count=COUNT)
    return folder


def written(inputs: Path, target: Path, name: str, **changes: Any) -> Path:
    assert write_files(open_rows(inputs, **changes), target, FILE_FORMATS[name])
    return target


def expected_rows() -> list[dict[str, Any]]:
    rows = []
    for number, passage in enumerate(passages(COUNT)):
        value = record(number, passage)
        value |= value.pop("metadata", None) or {}
        rows.append({"id": passage.id, **{name: value.get(name) for name in ("title", "text", *METADATA)}})
    return rows


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_a_folder_is_complete_and_a_second_run_changes_nothing(
    inputs: Path, tmp_path: Path, name: str
) -> None:
    target = written(inputs, tmp_path / "out", name)
    assert not verify_folder(target) and not (tmp_path / "out.unfinished").exists()
    facts = read_manifest(target)["metadata"]
    assert (facts["num_rows"], facts["dimension"], facts["similarity"], facts["model_fingerprint"]) == (
        COUNT,
        16,
        "dot",
        "m",
    )
    before = contents(target)
    assert not write_files(open_rows(inputs), target, FILE_FORMATS[name])
    assert contents(target) == before
    with pytest.raises(InputError, match="exists already, made with another metadata"):
        write_files(open_rows(inputs, metadata={}), target, FILE_FORMATS[name])


def test_parquet_has_typed_columns(inputs: Path, tmp_path: Path) -> None:
    table = pq.read_table(written(inputs, tmp_path / "out", "parquet") / "rows")
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 16)
    assert [str(table.schema.field(name).type) for name in METADATA] == ["int64", "double", "bool", "string"]
    assert table.drop(["vector"]).to_pylist() == expected_rows()
    np.testing.assert_array_equal(np.stack(table["vector"].to_numpy()), vectors(COUNT, 16))
    assert table.schema.metadata[b"similarity"] == b"dot"


def test_half_precision_stays_half(tmp_path: Path) -> None:
    write_inputs(tmp_path / "in", count=20, dtype="float16")
    table = pq.read_table(written(tmp_path / "in", tmp_path / "out", "parquet") / "rows")
    assert table.schema.field("vector").type == pa.list_(pa.float16(), 16)
    np.testing.assert_array_equal(np.stack(table["vector"].to_numpy()), vectors(20, 16))


def test_milvus_gets_plain_lists_and_the_request_for_its_collection(inputs: Path, tmp_path: Path) -> None:
    target = written(inputs, tmp_path / "out", "milvus-parquet")
    table = pq.read_table(target / "rows")
    assert table.schema.field("vector").type == pa.list_(pa.float32())
    assert table.drop(["vector"]).to_pylist() == expected_rows()
    np.testing.assert_array_equal(np.stack(table["vector"].to_numpy()), vectors(COUNT, 16))
    request = json.loads((target / "collection.json").read_text())
    assert [field["fieldName"] for field in request["schema"]["fields"]] == table.schema.names
    assert request["indexParams"][0]["metricType"] == "IP"


def test_a_text_that_milvus_cannot_hold_is_refused(tmp_path: Path) -> None:
    write_inputs(tmp_path, count=3, shards=1)
    lines = (tmp_path / "corpus.jsonl").read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"text": "\u00e9" * 40_000})
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"text of passage 'p. 1' has 80000 bytes.*65535"):
        write_files(open_rows(tmp_path), tmp_path / "out", FILE_FORMATS["milvus-parquet"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_qdrant_gets_a_point_a_line(tmp_path: Path, dtype: str) -> None:
    write_inputs(tmp_path / "in", count=COUNT, dtype=dtype)
    rows = open_rows(tmp_path / "in")
    target = written(tmp_path / "in", tmp_path / "out", "qdrant-jsonl")
    points = [
        json.loads(line)
        for path in sorted(target.glob("points-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert [point["payload"] for point in points] == expected_rows()
    stored = np.concatenate([chunk for shard in rows.shards for _, chunk in shard.chunks()]).astype(
        np.float32
    )
    np.testing.assert_array_equal(np.array([point["vector"] for point in points], dtype=np.float32), stored)
    assert [point["id"] for point in points] == [point_id(str(item.id)) for item in passages(COUNT)]
    assert uuid.UUID(points[0]["id"]).version == 5 and len({point["id"] for point in points}) == COUNT
    assert json.loads((target / "collection.json").read_text())["vectors"]["distance"] == "Dot"


def test_faiss_reads_the_index_and_finds_the_same(inputs: Path, tmp_path: Path) -> None:
    import faiss

    target = written(inputs, tmp_path / "out", "faiss")
    ids = (target / "docid").read_text().splitlines()
    assert [
        json.loads(line) for line in (target / "passages.jsonl").read_text().splitlines()
    ] == expected_rows()
    queries = np.random.default_rng(1).normal(size=(20, 16)).astype(np.float32)
    own = faiss.IndexFlatIP(16)
    own.add(vectors(COUNT, 16))
    for index in (
        faiss.read_index(str(target / "index")),
        faiss.read_index(str(target / "index"), faiss.IO_FLAG_MMAP_IFC),
    ):
        assert isinstance(index, faiss.IndexFlatIP) and index.ntotal == len(ids) == COUNT
        np.testing.assert_array_equal(index.reconstruct_n(0, COUNT), vectors(COUNT, 16))
        for found, expected in zip(index.search(queries, 10), own.search(queries, 10), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert faiss.serialize_index(own).tobytes() == (target / "index").read_bytes()


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_a_killed_run_is_finished_by_the_same_command(
    inputs: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the first step, then in the third, whose half is taken back: the bytes are those of an
    undisturbed run."""
    whole = contents(written(inputs, tmp_path / "whole", name))
    target = tmp_path / "out"
    load_and_die(WRITE, inputs, 20, name, str(target))
    load_and_die(WRITE, inputs, 150, name, str(target))
    unfinished = tmp_path / "out.unfinished"
    assert len(list(unfinished.glob("step-*.json"))) == 2 and not target.exists()
    read: list[int] = []
    monkeypatch.setattr(type(FILE_FORMATS[name]), "write", _counted(type(FILE_FORMATS[name]).write, read))
    assert contents(written(inputs, target, name)) == whole and not unfinished.exists()
    assert read == [2, 3, 4]


def _counted(write: Any, numbers: list[int]) -> Any:
    def counted(self: Any, folder: Any, number: int, *rest: Any) -> None:
        numbers.append(number)
        write(self, folder, number, *rest)

    return counted


def test_a_kill_before_the_name_leaves_only_the_name_to_be_given(inputs: Path, tmp_path: Path) -> None:
    whole = written(inputs, tmp_path / "whole", "parquet")
    before = contents(whole)
    (whole / "unfinished.json").write_text("{}")
    whole.rename(tmp_path / "out.unfinished")
    assert contents(written(inputs, tmp_path / "out", "parquet")) == before


def test_what_is_unfinished_of_something_else_is_refused(inputs: Path, tmp_path: Path) -> None:
    load_and_die(WRITE, inputs, 150, "parquet", str(tmp_path / "out"))
    with pytest.raises(
        InputError, match=r"holds unfinished output with metadata\.\w+='\w+', this run has None"
    ):
        write_files(open_rows(inputs, metadata={}), tmp_path / "out", FILE_FORMATS["parquet"])
    part = tmp_path / "out.unfinished" / "rows" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(InputError, match="is shorter than it was written"):
        write_files(open_rows(inputs), tmp_path / "out", FILE_FORMATS["parquet"])
    for claim in ("[]", "1", "x"):
        (tmp_path / "out.unfinished" / "unfinished.json").write_text(claim)
        with pytest.raises(InputError, match=r"unfinished.*: (does not say what|not JSON)"):
            write_files(open_rows(inputs), tmp_path / "out", FILE_FORMATS["parquet"])


def write_named(rows: Any, name: str, target: str) -> None:
    write_files(rows, Path(target), FILE_FORMATS[name])
