"""Rows as a table of PostgreSQL with pgvector. Each step is one transaction, in which the table ``dpr_loads``
counts it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpr.core.errors import CheckpointError, ConfigError, DprError, InputError, OutputError, first_line
from dpr.core.lazy import require
from dpr.core.logs import get_logger
from dpr.export.stores.rows import RowBatch, VectorRows

logger = get_logger(__name__)

_KINDS = {"text": "text", "int": "bigint", "float": "double precision", "bool": "boolean"}
_COPY_KINDS = {"text": "text", "int": "int8", "float": "float8", "bool": "bool"}
_MOST_DIMENSIONS = 16_000
_LOADS = (
    'CREATE TABLE IF NOT EXISTS dpr_loads ("table" text PRIMARY KEY, made_of text, facts text, steps bigint'
    " NOT NULL)"
)
_PATIENCE_S = 10.0


def load_postgres(rows: VectorRows, address: str, table: str) -> bool:
    """Copies all rows into ``table`` of the database ``address`` (libpq's form), or those that are missing.
    Returns whether any were.

    Raises:
        InputError: the table is made of something else, holds other rows, or vectors are too long for
        pgvector.
        OutputError: the server cannot be reached or refuses.
        CheckpointError: another process is loading the table.
        ConfigError: ``address`` is none; psycopg or pgvector is not installed.
    """
    psycopg = require("psycopg", extra="stores", purpose="to=pgvector")
    pgvector = require("pgvector.psycopg", extra="stores", purpose="to=pgvector")
    if rows.dimension > _MOST_DIMENSIONS:
        raise InputError(
            f"vectors of {rows.dimension} dimensions",
            expected=f"at most {_MOST_DIMENSIONS}, what pgvector holds",
        )
    name = f"table {table} of {_shown(psycopg, address)}"
    with _postgres_errors(psycopg, name), psycopg.connect(address, autocommit=True) as connection:
        _lock(connection, table, name)
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        pgvector.register_vector(connection)
        done = _steps_in(connection, psycopg.sql, rows, table, name)
        for number, batches in rows.steps(done):
            with connection.transaction():
                _copy(connection, psycopg.sql, rows, table, batches)
                connection.execute('UPDATE dpr_loads SET steps = %s WHERE "table" = %s', (number + 1, table))
        ((count,),) = connection.execute(
            psycopg.sql.SQL("SELECT count(*) FROM {}").format(psycopg.sql.Identifier(table))
        ).fetchall()
        if count != rows.num_rows:
            hint = "rows were added or removed; drop the table and rerun"
            raise InputError(
                f"holds {count} rows", file=name, expected=f"{rows.num_rows}, one a vector", hint=hint
            )
        return done < rows.num_steps


def _lock(connection: Any, table: str, name: str) -> None:
    """Takes the lock of the table until the connection ends; the server needs a moment to notice that a
    killed process is gone."""
    deadline = time.monotonic() + _PATIENCE_S
    while not connection.execute(
        "SELECT pg_try_advisory_lock(hashtext(%s))", (f"dpr_loads {table}",)
    ).fetchone()[0]:
        if time.monotonic() > deadline:
            raise CheckpointError("another process is loading it", file=name, hint="wait for it or end it")
        time.sleep(0.1)


def _steps_in(connection: Any, sql: Any, rows: VectorRows, table: str, name: str) -> int:
    """How many steps the table holds; makes it if it is not there."""
    made_of = json.dumps({"kind": "pgvector", **rows.made_of()}, sort_keys=True)
    with connection.transaction():
        connection.execute(_LOADS)
        known = connection.execute(
            'SELECT made_of, steps FROM dpr_loads WHERE "table" = %s', (table,)
        ).fetchone()
        exists = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f'"{table}"',)).fetchone()[0]
        if exists and (known is None or known[0] != made_of):
            what = "exists already" + (", made of other vectors, texts or metadata" if known else "")
            raise InputError(what, file=name, hint="choose another table=, or drop this one")
        if not exists:
            columns = [
                sql.SQL("{} {}").format(sql.Identifier(key), sql.SQL(_KINDS[kind]))
                for key, kind in rows.columns.items()
            ]
            vector = sql.SQL("vector {}({}) NOT NULL").format(
                sql.SQL(_vector_kind(rows)), sql.Literal(rows.dimension)
            )
            # Ids are compared as bytes, so that ties are broken as everywhere else and the database's
            # language does not matter.
            fields = sql.SQL(", ").join([sql.SQL('id text COLLATE "C" PRIMARY KEY'), vector, *columns])
            connection.execute(sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(table), fields))
            connection.execute('DELETE FROM dpr_loads WHERE "table" = %s', (table,))
            facts = json.dumps(rows.facts(), sort_keys=True)
            connection.execute("INSERT INTO dpr_loads VALUES (%s, %s, %s, 0)", (table, made_of, facts))
            return 0
    if known[1]:
        logger.info("%s: %d of %d steps exist already", name, known[1], rows.num_steps)
    return int(known[1])


def _copy(connection: Any, sql: Any, rows: VectorRows, table: str, batches: Iterator[RowBatch]) -> None:
    half_vector = require("pgvector", extra="stores", purpose="to=pgvector").HalfVector
    names = ["id", "vector", *rows.columns]
    fields = sql.SQL(", ").join(map(sql.Identifier, names))
    statement = sql.SQL("COPY {} ({}) FROM STDIN WITH (FORMAT BINARY)").format(sql.Identifier(table), fields)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(["text", _vector_kind(rows), *(_COPY_KINDS[kind] for kind in rows.columns.values())])
        for batch in batches:
            vectors = map(half_vector, batch.vectors) if rows.is_half else batch.vectors
            for row in zip(batch.ids, vectors, *batch.columns.values(), strict=True):
                copy.write_row(row)


def _vector_kind(rows: VectorRows) -> str:
    return "halfvec" if rows.is_half else "vector"


def _shown(psycopg: Any, address: str) -> str:
    """The address without its password; what cannot be read is not shown, as it may hold one."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.Error:
        raise ConfigError(
            "out is not the address of a database, e.g. out=postgresql://user@host/database"
        ) from None
    return (
        " ".join(f"{key}={parts[key]}" for key in ("host", "port", "dbname", "user") if parts.get(key))
        or "the default database"
    )


@contextmanager
def _postgres_errors(psycopg: Any, name: str) -> Iterator[None]:
    try:
        yield
    except DprError:
        raise
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile) as error:
        raise OutputError(
            name, first_line(error), hint="install the extension pgvector on the server"
        ) from error
    except psycopg.Error as error:
        hint = (
            "name the database as out=postgresql://user@host/database"
            if isinstance(error, psycopg.OperationalError)
            else None
        )
        raise OutputError(name, first_line(error), hint=hint) from error
