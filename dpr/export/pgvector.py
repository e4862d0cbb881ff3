"""Rows as a table of PostgreSQL with pgvector. Everything is one transaction, in which the table ``dpr_loads``
gets a row that states what the table is made of. A load that is killed leaves nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpr.core.errors import ConfigError, DprError, InputError, OutputError, first_line
from dpr.core.machine import require
from dpr.export.store_rows import VectorRows

_KINDS = {"text": "text", "int": "int8", "float": "float8", "bool": "bool"}
_LOADS = 'CREATE TABLE IF NOT EXISTS dpr_loads ("table" text PRIMARY KEY, made_of text, facts text)'


def load_postgres(rows: VectorRows, address: str, table: str) -> bool:
    """Copies all rows into ``table`` of the database ``address`` (libpq's form). Returns False if they are
    there already. Waits for another process that is loading this table.

    Names of the table and of columns are limited by ``StoreSettings`` to letters, digits and _, so that they
    can stand in a statement.

    Raises:
        InputError: the table is made of something else, or contains other rows.
        OutputError: the server cannot be reached, or refuses, for example vectors that are too long for it.
        ConfigError: ``address`` is no address of a database; or psycopg or pgvector is not installed.
    """
    psycopg = require("psycopg", extra="stores", purpose="to=pgvector")
    pgvector = require("pgvector.psycopg", extra="stores", purpose="to=pgvector")
    half_vector = require("pgvector", extra="stores", purpose="to=pgvector").HalfVector
    # The address is shown without its password. An unreadable address is not shown, as it may contain one.
    try:
        parts = psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.Error:
        raise ConfigError(
            "out is not the address of a database, e.g. out=postgresql://user@host/database"
        ) from None
    shown = [f"{key}={parts[key]}" for key in ("host", "port", "dbname", "user") if parts.get(key)]
    name = f"table {table} of {' '.join(shown) or 'the default database'}"
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
                what = "already exists" + (", made of other vectors, texts or metadata" if known else "")
                raise InputError(what, file=name, hint="choose another table=, or drop this one")
        else:
            vector = "halfvec" if rows.is_half else "vector"
            kinds = {name: _KINDS[kind] for name, kind in rows.columns.items()}
            # Ids are compared as bytes, so that ties are broken as everywhere else and the database's language does
            # not matter.
            columns = ['id text COLLATE "C" PRIMARY KEY', f"vector {vector}({rows.dimension}) NOT NULL"]
            columns += [f'"{name}" {kind}' for name, kind in kinds.items()]
            connection.execute(f'CREATE TABLE "{table}" ({", ".join(columns)})')
            with (
                connection.cursor() as cursor,
                cursor.copy(f'COPY "{table}" FROM STDIN WITH (FORMAT BINARY)') as copy,
            ):
                copy.set_types(["text", vector, *kinds.values()])
                for batch in rows.batches():
                    vectors = map(half_vector, batch.vectors) if rows.is_half else batch.vectors
                    for row in zip(batch.ids, vectors, *batch.columns.values(), strict=True):
                        copy.write_row(row)
            connection.execute('DELETE FROM dpr_loads WHERE "table" = %s', (table,))
            facts = json.dumps(rows.provenance(), sort_keys=True)
            connection.execute("INSERT INTO dpr_loads VALUES (%s, %s, %s)", (table, made_of, facts))
        (count,) = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()
        rows.require_all(count, name)
        return not exists


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
        raise OutputError(name, first_line(error)) from error
