"""Store settings -> vectors with their passages -> a vector store."""

from __future__ import annotations

from pathlib import Path

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.embedding.source import corpora_of, require_corpora
from dpr.export.settings import ExportConfig
from dpr.export.stores.files import FILE_FORMATS, write_files
from dpr.export.stores.lance import load_lance
from dpr.export.stores.postgres import load_postgres
from dpr.export.stores.rows import VectorRows
from dpr.formats.vector_shards import open_shards
from dpr.jobs.sources import resolve_passage_sources
from dpr.storage.outputs import require_writable

logger = get_logger(__name__)

_SERVERS = {"lancedb": load_lance, "pgvector": load_postgres}


def fill_store(config: ExportConfig) -> None:
    """Puts the vectors into the store that the settings name, or those that an earlier, killed run did not."""
    out = str(config.out_file)
    if config.to != "pgvector" and "://" not in out:
        require_writable(out, folder=True)
    sources = resolve_passage_sources(config.passage_names(), config.ctx_sources)
    shards = open_shards(config.vector_patterns())
    rows = VectorRows(shards, sources, config.metadata_kinds())
    if not rows.num_rows:
        raise InputError("no vectors", file=", ".join(config.vector_patterns()))
    require_corpora(corpora_of(shard.metadata for shard in shards), sources, file=", ".join(config.vector_patterns()))
    if config.to in FILE_FORMATS:
        has_written = write_files(rows, Path(out), FILE_FORMATS[config.to])
    else:
        has_written = _SERVERS[config.to](rows, out, config.table)
    if has_written:
        logger.info("%s holds %d vectors of %d dimensions, compared by dot product", config.to, rows.num_rows, rows.dimension)
