"""Rows as a table of LanceDB, whose first version has all of them. A load that is killed leaves nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpr.core.errors import DprError, InputError, OutputError, first_line
from dpr.core.machine import require
from dpr.export.store_rows import VectorRows
from dpr.storage.locks import lock_of, locked

_MADE_OF = "dpr.made_of"
_TYPES = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}


def load_lance(rows: VectorRows, address: str, table: str) -> bool:
    """Writes all rows as ``table`` in the folder (or object store) ``address``. Returns False if they are
    there already.

    Raises:
        InputError: the table is made of something else, or contains other rows.
        OutputError: LanceDB cannot write it.
        CheckpointError: another process is writing there.
        ConfigError: lancedb is not installed.
    """
    lancedb = require("lancedb", extra="stores", purpose="to=lancedb")
    name = f"{address}/{table}"
    with ExitStack() as stack:
        if "://" not in address:
            folder = Path(address)
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / table, file=lock_of(folder / f"{table}.lance")))
        made_of = json.dumps({"kind": "lancedb", **rows.made_of()}, sort_keys=True)
        try:
            database = lancedb.connect(address)
            try:
                opened = database.open_table(table)
            except (ValueError, OSError, RuntimeError):  # each version raises another if there is no table
                opened = None
            is_new = opened is None
            if is_new:
                opened = _create(database, rows, table, made_of)
            elif (opened.schema.metadata or {}).get(_MADE_OF.encode(), b"").decode() != made_of:
                hint = "choose another table=, or drop this one"
                raise InputError("already exists, made of something else", file=name, hint=hint)
            count = opened.count_rows()
        except DprError:
            raise
        except (RuntimeError, ValueError, OSError) as error:
            raise OutputError(name, first_line(error)) from error
        rows.require_all(count, name)
        return is_new


def _create(database: Any, rows: VectorRows, table: str, made_of: str) -> Any:
    """Creates the table with all rows, or none."""
    note = {_MADE_OF: made_of} | {f"dpr.{key}": str(value) for key, value in rows.provenance().items()}
    vector = pa.list_(pa.float16() if rows.is_half else pa.float32(), rows.dimension)
    fields = [pa.field("id", pa.string(), nullable=False), pa.field("vector", vector, nullable=False)]
    fields += [pa.field(name, _TYPES[kind]) for name, kind in rows.columns.items()]
    schema = pa.schema(fields, metadata=note)
    failures: list[DprError] = []

    def converted() -> Iterator[Any]:
        try:
            for item in rows.batches():
                numbers = pa.array(item.vectors.reshape(-1))
                vectors = pa.FixedSizeListArray.from_arrays(numbers, item.vectors.shape[1])
                columns = {"id": item.ids, "vector": vectors, **item.columns}
                yield pa.RecordBatch.from_pydict(columns, schema=schema)
        except DprError as error:  # comes back through Arrow as a text
            failures.append(error)
            raise

    try:
        return database.create_table(table, pa.RecordBatchReader.from_batches(schema, converted()))
    except Exception as error:
        raise failures[0] if failures else error from None
