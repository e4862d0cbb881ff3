"""Settings of an export of vectors to a vector store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, listed, setting
from dpr.embedding.settings import PassageSourceConfig

STORES = ("lancedb", "pgvector", "parquet", "faiss", "qdrant-jsonl", "milvus-parquet")
_KINDS = ("text", "int", "float", "bool")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_OWN_COLUMNS = ("id", "vector", "title", "text")


@dataclass
class StoreSettings(Settings):
    """What goes into a vector store."""

    vectors: Any = None
    """For a vector store: folders of vectors, globs, or a list of them, e.g. vectors=runs/first/vectors_*."""
    ctx_datasets: Any = None
    """For a vector store: the passages that were embedded, whose titles and texts it gets too: names of ``ctx_sources`` or paths. Absent =
    ids and vectors alone."""
    metadata: Any = None
    """For a vector store: fields of the passages (JSON lines or Parquet) that become columns, name or name:kind with kind text, int, float
    or bool, e.g. metadata=[url,year:int]. Absent = none."""
    table: str = "passages"
    """For lancedb and pgvector: the table to fill."""
    ctx_sources: dict[str, Any] = setting(dict, entries=PassageSourceConfig)
    """Catalogue: name -> options of a passage collection (file, id_prefix, ...)."""

    def vector_patterns(self) -> list[str]:
        """``vectors`` as a list."""
        return list(map(str, listed(self.vectors)))

    def passage_names(self) -> list[str]:
        """``ctx_datasets`` as a list."""
        return list(map(str, listed(self.ctx_datasets)))

    def metadata_kinds(self) -> dict[str, str]:
        """Kinds of the metadata columns by name.

        Raises:
            ConfigError: a kind or a name cannot be one.
        """
        kinds: dict[str, str] = {}
        for item in map(str, listed(self.metadata)):
            name, _, kind = item.partition(":")
            kind = kind or "text"
            if kind not in _KINDS:
                raise ConfigError(f"metadata: {item} is of no known kind; choose one of {', '.join(_KINDS)}, e.g. {name}:int")
            if not _NAME.fullmatch(name) or name in _OWN_COLUMNS or name in kinds:
                found = "is given twice" if name in kinds else "cannot be a column"
                raise ConfigError(f"metadata: {name!r} {found}; a name has letters, digits and _, and is none of {', '.join(_OWN_COLUMNS)}")
            kinds[name] = kind
        return kinds

    def check_store(self, to: str) -> None:
        """Checks the settings of an export ``to`` something."""
        given = [key for key in ("vectors", "ctx_datasets", "metadata") if listed(getattr(self, key))]
        if to not in STORES:
            if given:
                raise ConfigError(f"{given[0]} belongs to a vector store, to={'|'.join(STORES)}, not to={to}")
            return
        if "vectors" not in given:
            raise ConfigError(f"vectors is not set; to={to} takes vectors, e.g. vectors=runs/first/vectors_*")
        if self.metadata_kinds() and not self.passage_names():
            raise ConfigError("ctx_datasets is not set; metadata is read from the passages, e.g. ctx_datasets=[corpus.jsonl]")
        if not _NAME.fullmatch(self.table):
            raise ConfigError(f"table={self.table!r} is not a name of letters, digits and _, e.g. table=passages")
