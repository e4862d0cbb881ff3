"""Rows with vectors as Arrow and Parquet: columns ``id``, ``vector``, and those that the rows have beside
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_TYPES = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}


def row_schema(
    columns: Mapping[str, str],
    dimension: int,
    *,
    is_half: bool,
    fixed: bool = True,
    note: Mapping[str, str] | None = None,
) -> pa.Schema:
    """The schema of rows with these columns, name -> kind (``dpr/formats/corpus_metadata.py``).

    Args:
        is_half: vectors are float16, else float32.
        fixed: vectors are lists of fixed size, else plain lists, which older readers take.
        note: texts that the schema carries along.
    """
    number = pa.float16() if is_half else pa.float32()
    vector = pa.list_(number, dimension) if fixed else pa.list_(number)
    fields = [pa.field("id", pa.string(), nullable=False), pa.field("vector", vector, nullable=False)]
    fields += [pa.field(name, _TYPES[kind]) for name, kind in columns.items()]
    return pa.schema(fields, metadata=dict(note) if note else None)


def record_batch(
    schema: pa.Schema, ids: Sequence[str], vectors: np.ndarray, columns: Mapping[str, Sequence[Any]]
) -> pa.RecordBatch:
    """Rows of a schema; ``vectors`` (n, D) of its number type are not copied."""
    kind, values = schema.field("vector").type, pa.array(np.ascontiguousarray(vectors).reshape(-1))
    if pa.types.is_fixed_size_list(kind):
        lists = pa.FixedSizeListArray.from_arrays(values, kind.list_size)
    else:
        offsets = np.arange(len(ids) + 1, dtype=np.int32) * vectors.shape[1]
        lists = pa.ListArray.from_arrays(pa.array(offsets), values)
    rest = [pa.array(columns[name], type=schema.field(name).type) for name in schema.names[2:]]
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, type=pa.string()), lists.cast(kind), *rest], schema=schema
    )


def batch_reader(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
    """The batches as a stream that other Arrow programs read."""
    return pa.RecordBatchReader.from_batches(schema, batches)


def write_parquet(sink: IO[bytes], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Writes a Parquet file, a row group for each batch; one of them is held in memory."""
    texts = [field.name for field in schema if field.name != "vector"]
    with pq.ParquetWriter(
        sink, schema, compression="zstd", use_dictionary=texts
    ) as writer:  # vectors hardly repeat
        for batch in batches:
            writer.write_batch(batch)


def count_rows(file: Path) -> int:
    """Rows of a Parquet file, from its footer."""
    return int(pq.read_metadata(file).num_rows)
