"""Vectors joined with the passages they were made from, as a stream of batches, and two stores that are
filled with them. Neither vectors nor passages are ever held whole.

Vectors stand in their shards in the order of the corpus, so one pass over the corpus finds the passage of
each.

In LanceDB, the first version of the table has all rows. In PostgreSQL with pgvector, everything is one
transaction, in which the table ``dpr_loads`` gets a row that states what the table is made of. A load that is
killed leaves nothing in either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpr.core.errors import ConfigError, DprError, InputError, OutputError, first_line
from dpr.core.machine import require
from dpr.core.records import Passage, text_sha256
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import read_metadata
from dpr.formats.vector_shards import VectorShard
from dpr.indexer.ranking import decode_ids
from dpr.storage.durable import MANIFEST, describe_file
from dpr.storage.locks import lock_of, locked

BATCH_ROWS = 8192

_Found = tuple[Passage, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Some rows: ``vectors`` (n, D) finite, and the values of each column, in the order of ``ids``."""

    ids: list[str]
    vectors: np.ndarray
    columns: dict[str, list[Any]]


@dataclass(frozen=True)
class VectorRows:
    """All rows of some shards. Without ``sources``, rows have only an id and a vector.

    ``metadata`` are fields of the corpus, name -> kind (``dpr/formats/corpora.py``).
    """

    shards: Sequence[VectorShard]
    sources: Sequence[PassageSource] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    batch_rows: int = BATCH_ROWS

    @property
    def num_rows(self) -> int:
        return sum(shard.num_vectors for shard in self.shards)

    @property
    def dimension(self) -> int:
        return self.shards[0].dimension

    @property
    def is_half(self) -> bool:
        """True if vectors are float16; otherwise they are float32, with codes decoded."""
        return all(shard.dtype == "float16" for shard in self.shards)

    @property
    def columns(self) -> dict[str, str]:
        """Returns the kinds of the columns beside id and vector, by name."""
        return {"title": "text", "text": "text", **self.metadata} if self.sources else {}

    def made_of(self) -> dict[str, Any]:
        """Returns hashes of everything that determines the rows. Reads every corpus, or finds its hash in the cache."""
        vectors = "\n".join(describe_file(shard.path / MANIFEST)["sha256"] for shard in self.shards)
        corpus = json.dumps([source.identity() for source in self.sources], sort_keys=True)
        return {
            "vectors": text_sha256(vectors)[:32],
            "corpus": text_sha256(corpus)[:32] if self.sources else "",
            "metadata": dict(self.metadata),
            "rows": self.num_rows,
        }

    def provenance(self) -> dict[str, Any]:
        """Returns what a store should state about its vectors: the model that made them, and how they are compared."""
        first = self.shards[0].metadata
        return {
            "dimension": self.dimension,
            "similarity": "dot",
            "model_fingerprint": str(first.get("model_fingerprint", "")),
        }

    def require_all(self, count: int, name: str) -> None:
        """Raises InputError unless a table has as many rows as there are vectors."""
        if count != self.num_rows:
            raise InputError(
                f"holds {count} rows",
                file=name,
                expected=f"{self.num_rows}, one a vector",
                hint="rows were added or removed; drop the table and rerun",
            )

    def batches(self) -> Iterator[RowBatch]:
        """Yields all rows.

        Raises:
            InputError: a passage of the vectors is not in the corpus, or they are in another order.
        """
        passages = self._passages()
        for shard in self.shards:
            for keys, vectors in shard.chunks():
                for start in range(0, len(keys), self.batch_rows):
                    part = slice(start, start + self.batch_rows)
                    numbers = vectors[part].astype(np.float16 if self.is_half else np.float32)
                    if not np.isfinite(numbers).all():
                        hint = "embed the corpus again with an intact model"
                        raise InputError("holds NaN or infinity", file=shard.path, hint=hint)
                    ids = decode_ids(keys[part])
                    columns: dict[str, list[Any]] = {}
                    if self.sources:
                        found = [self._match(key, passages, shard) for key in ids]
                        ids = [str(passage.id) for passage, _ in found]
                        columns["title"] = [passage.title for passage, _ in found]
                        columns["text"] = [passage.text for passage, _ in found]
                        for place, name in enumerate(self.metadata):
                            columns[name] = [values[place] for _, values in found]
                    yield RowBatch(ids, numbers, columns)

    def _passages(self) -> Iterator[_Found]:
        for source in self.sources:
            values = read_metadata(source.file, self.metadata) if self.metadata else repeat(())
            yield from zip(source.read(), values)  # both have one item a passage

    def _match(self, key: str, passages: Iterator[_Found], shard: VectorShard) -> _Found:
        """Returns the next passage with the id of a vector, prefixed or not."""
        wanted = {key, *(source.id_prefix + key for source in self.sources)}
        for item in passages:
            if item[0].id in wanted:
                return item
        hint = "ctx_datasets must name the files the vectors were made from, in their order, with the same id_prefix"
        raise InputError(
            f"no passage {key!r} after those of the vectors before it in {shard.path}",
            file=", ".join(str(source.file) for source in self.sources),
            hint=hint,
        )


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
                raise InputError("exists already, made of something else", file=name, hint=hint)
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
                rest = [
                    pa.array(item.columns[name], type=_TYPES[kind]) for name, kind in rows.columns.items()
                ]
                yield pa.RecordBatch.from_arrays([pa.array(item.ids), vectors, *rest], schema=schema)
        except DprError as error:  # comes back through Arrow as a text
            failures.append(error)
            raise

    try:
        return database.create_table(table, pa.RecordBatchReader.from_batches(schema, converted()))
    except Exception as error:
        raise failures[0] if failures else error from None


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
                what = "exists already" + (", made of other vectors, texts or metadata" if known else "")
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
