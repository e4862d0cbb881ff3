"""Rows as a table of PostgreSQL with pgvector: one transaction, in which the table ``dpr_loads`` gets a row that
says what it is made of. A load that is killed leaves nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpr.core.errors import ConfigError, DprError, InputError, OutputError, first_line
from dpr.core.machine import require
from dpr.export.stores.rows import VectorRows

_KINDS = {"text": "text", "int": "bigint", "float": "double precision", "bool": "boolean"}
_COPY_KINDS = {"text": "text", "int": "int8", "float": "float8", "bool": "bool"}
_MOST_DIMENSIONS = 16_000
_LOADS = 'CREATE TABLE IF NOT EXISTS dpr_loads ("table" text PRIMARY KEY, made_of text, facts text)'


def load_postgres(rows: VectorRows, address: str, table: str) -> bool:
    """Copies all rows into ``table`` of the database ``address`` (libpq's form); returns False where they are
    there already. Waits for another process that is loading this table.

    Raises:
        InputError: the table is made of something else, holds other rows, or vectors are too long for
        pgvector.
        OutputError: the server cannot be reached or refuses.
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
    sql = psycopg.sql
    with _postgres_errors(psycopg, name), psycopg.connect(address) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('dpr_loads'), hashtext(%s))", (table,))
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        pgvector.register_vector(connection)
        connection.execute(_LOADS)
        made_of = json.dumps({"kind": "pgvector", **rows.made_of()}, sort_keys=True)
        (exists,) = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f'"{table}"',)).fetchone()
        if exists:
            known = connection.execute(
                'SELECT made_of FROM dpr_loads WHERE "table" = %s', (table,)
            ).fetchone()
            if known is None or known[0] != made_of:
                what = "exists already" + (", made of other vectors, texts or metadata" if known else "")
                raise InputError(what, file=name, hint="choose another table=, or drop this one")
        else:
            _copy(connection, sql, rows, table)
            connection.execute('DELETE FROM dpr_loads WHERE "table" = %s', (table,))
            facts = json.dumps(rows.facts(), sort_keys=True)
            connection.execute("INSERT INTO dpr_loads VALUES (%s, %s, %s)", (table, made_of, facts))
        counted = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
        (count,) = connection.execute(counted).fetchone()
        if count != rows.num_rows:
            hint = "rows were added or removed; drop the table and rerun"
            expected = f"{rows.num_rows}, one a vector"
            raise InputError(f"holds {count} rows", file=name, expected=expected, hint=hint)
        return not exists


def _copy(connection: Any, sql: Any, rows: VectorRows, table: str) -> None:
    """Makes the table and fills it."""
    vector = sql.SQL("vector {}({}) NOT NULL").format(
        sql.SQL(_vector_kind(rows)), sql.Literal(rows.dimension)
    )
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(key), sql.SQL(_KINDS[kind]))
        for key, kind in rows.columns.items()
    ]
    # Ids are compared as bytes, so that ties are broken as everywhere else and the database's language does
    # not matter.
    fields = sql.SQL(", ").join([sql.SQL('id text COLLATE "C" PRIMARY KEY'), vector, *columns])
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(table), fields))
    half_vector = require("pgvector", extra="stores", purpose="to=pgvector").HalfVector
    names = sql.SQL(", ").join(map(sql.Identifier, ["id", "vector", *rows.columns]))
    statement = sql.SQL("COPY {} ({}) FROM STDIN WITH (FORMAT BINARY)").format(sql.Identifier(table), names)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(["text", _vector_kind(rows), *(_COPY_KINDS[kind] for kind in rows.columns.values())])
        for batch in rows.batches():
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
