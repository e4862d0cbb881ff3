"""Rows as folders of files that other programs load: Parquet, Milvus' Parquet, Qdrant's JSON lines, and a
faiss index.

A format writes one step of rows after the other. What a killed process had written of a step is gone when the
step is written again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import MAX_ID_BYTES
from dpr.export.stores.rows import RowBatch, VectorRows
from dpr.formats import vector_tables
from dpr.indexer.faiss_files import flat_header, read_engine
from dpr.storage.steps import StepsInOrder, steps_in_order

logger = get_logger(__name__)

_POINT_NAMES = uuid.UUID("5d1f4a4e-3b0c-5a57-9a7f-6d2b8a0c9e11")
_MILVUS_TEXT_BYTES = 65_535
_READ_BYTES = 2**22


class FileFormat(Protocol):
    """How rows stand in files."""

    name: str

    def write(self, folder: StepsInOrder, number: int, batches: Iterator[RowBatch], rows: VectorRows) -> None:
        """Writes step ``number``."""
        ...

    def count(self, folder: Path, rows: VectorRows) -> int:
        """How many rows the files hold, by reading them; only full steps and the last one were written."""
        ...


def write_files(rows: VectorRows, target: Path, kind: FileFormat) -> bool:
    """Writes all rows into the new folder ``target``, or continues where a killed process ended. Returns
    whether it had to.

    Raises:
        InputError: ``target`` is made of something else; a passage is missing; the format cannot hold a row.
        OutputError: it cannot be written.
        CheckpointError: another process is writing it.
    """
    with steps_in_order(target, {"kind": kind.name, **rows.made_of()}) as folder:
        if folder is None:
            return False
        if folder.is_complete():
            return True
        if folder.num_done:
            logger.info("%s: %d of %d steps exist already", folder.folder, folder.num_done, rows.num_steps)
        for number, batches in rows.steps(folder.num_done):
            kind.write(folder, number, batches, rows)
            folder.commit()
        if (count := kind.count(folder.folder, rows)) != rows.num_rows:
            raise InputError(
                f"holds {count} rows", file=folder.folder, expected=f"{rows.num_rows}, one a vector"
            )
        folder.finish({"num_rows": rows.num_rows, **rows.facts()})
        return True


class ParquetFiles:
    """``rows/part-00000.parquet`` ...: columns id, vector (a list of fixed size), title, text, metadata."""

    name = "parquet"
    fixed = True

    def write(self, folder: StepsInOrder, number: int, batches: Iterator[RowBatch], rows: VectorRows) -> None:
        schema = self._schema(rows)
        with folder.appended(_part(number)) as out:
            vector_tables.write_parquet(
                out,
                schema,
                (
                    vector_tables.record_batch(schema, item.ids, item.vectors, item.columns)
                    for item in batches
                ),
            )

    def count(self, folder: Path, rows: VectorRows) -> int:
        return sum(vector_tables.count_rows(folder / _part(number)) for number in range(rows.num_steps))

    def _schema(self, rows: VectorRows) -> Any:
        note = {key: str(value) for key, value in rows.facts().items()}
        return vector_tables.row_schema(rows.columns, rows.dimension, is_half=rows.is_half, note=note)


class MilvusFiles(ParquetFiles):
    """The same with what Milvus' bulk import takes (plain lists of float32, texts of at most 65,535 bytes),
    and ``collection.json``, the body of the request that creates the collection."""

    name = "milvus-parquet"

    def write(self, folder: StepsInOrder, number: int, batches: Iterator[RowBatch], rows: VectorRows) -> None:
        if number == 0:
            _write_json(folder, "collection.json", self._collection(rows))
        super().write(folder, number, (self._checked(batch, rows) for batch in batches), rows)

    def _schema(self, rows: VectorRows) -> Any:
        return vector_tables.row_schema(rows.columns, rows.dimension, is_half=False, fixed=False)

    def _checked(self, batch: RowBatch, rows: VectorRows) -> RowBatch:
        for name, kind in rows.columns.items():
            for key, text in zip(batch.ids, batch.columns[name], strict=True) if kind == "text" else ():
                if (
                    text is not None
                    and 4 * len(text) > _MILVUS_TEXT_BYTES
                    and (size := len(text.encode())) > _MILVUS_TEXT_BYTES
                ):
                    found = f"{name} of passage {key!r} has {size} bytes"
                    raise InputError(
                        found,
                        expected=f"at most {_MILVUS_TEXT_BYTES}, as Milvus holds",
                        hint="cut the corpus finer",
                    )
        return RowBatch(batch.ids, batch.vectors.astype(np.float32), batch.columns)

    def _collection(self, rows: VectorRows) -> dict[str, Any]:
        kinds = {"text": "VarChar", "int": "Int64", "float": "Double", "bool": "Bool"}
        fields: list[dict[str, Any]] = [
            {
                "fieldName": "id",
                "dataType": "VarChar",
                "isPrimary": True,
                "elementTypeParams": {"max_length": MAX_ID_BYTES},
            },
            {"fieldName": "vector", "dataType": "FloatVector", "elementTypeParams": {"dim": rows.dimension}},
        ]
        for name, kind in rows.columns.items():
            entry: dict[str, Any] = {"fieldName": name, "dataType": kinds[kind]}
            entry |= {"elementTypeParams": {"max_length": _MILVUS_TEXT_BYTES}} if kind == "text" else {}
            fields.append(entry | ({"nullable": True} if name in rows.metadata else {}))
        index = {"fieldName": "vector", "indexName": "vector", "metricType": "IP", "indexType": "AUTOINDEX"}
        schema = {"autoID": False, "enableDynamicField": False, "fields": fields}
        return {"collectionName": "passages", "schema": schema, "indexParams": [index]}


class QdrantFiles:
    """``points-00000.jsonl`` ..., a point a line, and ``collection.json``, the body of the request that
    creates the collection.

    Qdrant takes no texts as ids: a point has the UUID (version 5) of its passage id, so that loading it again
    replaces it.
    """

    name = "qdrant-jsonl"

    def write(self, folder: StepsInOrder, number: int, batches: Iterator[RowBatch], rows: VectorRows) -> None:
        if number == 0:
            vectors = {"size": rows.dimension, "distance": "Dot"} | (
                {"datatype": "float16"} if rows.is_half else {}
            )
            _write_json(folder, "collection.json", {"vectors": vectors})
        with folder.appended(_points(number)) as out:
            for batch in batches:
                for row, key in enumerate(batch.ids):
                    payload = {"id": key, **{name: values[row] for name, values in batch.columns.items()}}
                    # The shortest texts that are read as the same float32; what json writes of a float64 is
                    # twice as long.
                    numbers = ",".join(batch.vectors[row].astype(np.float32).astype(str).tolist())
                    point = f'{{"id":"{point_id(key)}","vector":[{numbers}],"payload":{json.dumps(payload, ensure_ascii=False)}}}\n'
                    out.write(point.encode())

    def count(self, folder: Path, rows: VectorRows) -> int:
        return sum(_count_lines(folder / _points(number)) for number in range(rows.num_steps))


class FaissFiles:
    """``index``, a flat inner-product index of faiss, and ``docid`` and ``passages.jsonl``, whose line n is
    of its vector n."""

    name = "faiss"

    def write(self, folder: StepsInOrder, number: int, batches: Iterator[RowBatch], rows: VectorRows) -> None:
        with (
            folder.appended("index") as index,
            folder.appended("docid") as ids,
            folder.appended("passages.jsonl") as texts,
        ):
            if number == 0:
                index.write(flat_header(rows.dimension, rows.num_rows))
            for batch in batches:
                index.write(batch.vectors.astype("<f4").data)
                for row, key in enumerate(batch.ids):
                    if key.splitlines() != [key]:
                        raise InputError(
                            f"the id {key!r} holds a line break",
                            expected="ids of one line; docid has one a line",
                        )
                    ids.write(f"{key}\n".encode())
                    values = {"id": key, **{name: column[row] for name, column in batch.columns.items()}}
                    texts.write((json.dumps(values, ensure_ascii=False) + "\n").encode())

    def count(self, folder: Path, rows: VectorRows) -> int:
        counts = {
            read_engine(folder / "index").ntotal,
            _count_lines(folder / "docid"),
            _count_lines(folder / "passages.jsonl"),
        }
        return int(counts.pop()) if len(counts) == 1 else -1


def point_id(passage_id: str) -> str:
    """The id of a passage's point in Qdrant."""
    return str(uuid.uuid5(_POINT_NAMES, passage_id))


def _write_json(folder: StepsInOrder, name: str, value: Any) -> None:
    with folder.appended(name) as out:
        out.write((json.dumps(value, indent=2) + "\n").encode())


def _part(number: int) -> str:
    return f"rows/part-{number:05d}.parquet"


def _points(number: int) -> str:
    return f"points-{number:05d}.jsonl"


def _count_lines(path: Path) -> int:
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_READ_BYTES), b""))


FILE_FORMATS: dict[str, FileFormat] = {
    kind.name: kind for kind in (ParquetFiles(), MilvusFiles(), QdrantFiles(), FaissFiles())
}
