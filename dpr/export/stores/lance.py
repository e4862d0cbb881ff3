"""Rows as a table of LanceDB. Each step is one version of the table, so the number of its rows says how many
steps it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpr.core.errors import DprError, InputError, OutputError, first_line
from dpr.core.lazy import require
from dpr.core.logs import get_logger
from dpr.export.stores.rows import RowBatch, VectorRows
from dpr.storage.run_lock import held, lock_of

logger = get_logger(__name__)

_MADE_OF = "dpr.made_of"
_TYPES = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}


def load_lance(rows: VectorRows, address: str, table: str) -> bool:
    """Adds all rows to ``table`` in the folder (or object store) ``address``, or those that are missing.
    Returns whether any were.

    Raises:
        InputError: the table is made of something else, or holds other rows.
        OutputError: LanceDB cannot write it.
        CheckpointError: another process is writing there.
        ConfigError: lancedb is not installed.
    """
    lancedb = require("lancedb", extra="stores", purpose="to=lancedb")
    folder = Path(address)
    is_remote = "://" in address
    if not is_remote:
        folder.mkdir(parents=True, exist_ok=True)
    with (
        nullcontext() if is_remote else held(folder / table, file=lock_of(folder / f"{table}.lance")),
        _lance_errors(f"{address}/{table}"),
    ):
        made_of = {"kind": "lancedb", **rows.made_of()}
        note = {_MADE_OF: json.dumps(made_of, sort_keys=True)} | {
            f"dpr.{key}": str(value) for key, value in rows.facts().items()
        }
        vector = pa.list_(pa.float16() if rows.is_half else pa.float32(), rows.dimension)
        fields = [pa.field("id", pa.string(), nullable=False), pa.field("vector", vector, nullable=False)]
        fields += [pa.field(name, _TYPES[kind]) for name, kind in rows.columns.items()]
        schema = pa.schema(fields, metadata=note)
        database = lancedb.connect(address if is_remote else str(folder))
        try:
            opened = database.open_table(table)
        except (ValueError, OSError, RuntimeError):  # each version has another for a table that is not there
            opened = database.create_table(table, schema=schema)
        done = _steps_in(opened, rows, note[_MADE_OF], f"{address}/{table}")
        for _, batches in rows.steps(done):
            _add(opened, schema, batches)
        if (count := opened.count_rows()) != rows.num_rows:
            raise InputError(
                f"holds {count} rows", file=f"{address}/{table}", expected=f"{rows.num_rows}, one a vector"
            )
        return done < rows.num_steps


def _steps_in(table: Any, rows: VectorRows, made_of: str, name: str) -> int:
    stated = (table.schema.metadata or {}).get(_MADE_OF.encode(), b"").decode()
    if stated != made_of:
        keys = ""
        if stated:
            old, new = json.loads(stated), json.loads(made_of)
            differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
            keys = f", made with another {', '.join(differing)}"
        raise InputError(f"exists already{keys}", file=name, hint="choose another table=, or drop this one")
    count = table.count_rows()
    if count == rows.num_rows:
        return rows.num_steps
    if count > rows.num_rows or count % rows.step_rows:
        expected = f"a multiple of {rows.step_rows} up to {rows.num_rows}"
        raise InputError(
            f"holds {count} rows",
            file=name,
            expected=expected,
            hint="rows were added or removed; drop the table and rerun",
        )
    if count:
        logger.info("%s: %d of %d rows exist already", name, count, rows.num_rows)
    return count // rows.step_rows


def _add(table: Any, schema: Any, batches: Iterator[RowBatch]) -> None:
    """One version with all of these rows, or none."""
    failures: list[DprError] = []

    def converted() -> Iterator[Any]:
        try:
            for item in batches:
                numbers = pa.array(item.vectors.reshape(-1))
                vectors = pa.FixedSizeListArray.from_arrays(numbers, item.vectors.shape[1])
                rest = [pa.array(item.columns[field.name], type=field.type) for field in list(schema)[2:]]
                yield pa.RecordBatch.from_arrays([pa.array(item.ids), vectors, *rest], schema=schema)
        except DprError as error:  # comes back through Arrow as a text
            failures.append(error)
            raise

    try:
        table.add(pa.RecordBatchReader.from_batches(schema, converted()))
    except Exception as error:
        raise failures[0] if failures else error from None


@contextmanager
def _lance_errors(name: str) -> Iterator[None]:
    """LanceDB raises RuntimeError, ValueError and OSError for what goes wrong on its disk or in its
    tables."""
    try:
        yield
    except DprError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        raise OutputError(name, first_line(error)) from error
