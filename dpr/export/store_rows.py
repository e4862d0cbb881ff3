"""Vectors joined with the passages they were made from, as a stream of batches for a vector store. Neither
vectors nor passages are ever whole in memory.

Vectors are in the order of the corpus in their shards, so one pass over the corpus finds the passage of each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import Passage, text_sha256
from dpr.embedding.source import PassageSource
from dpr.formats.passage_metadata import read_metadata
from dpr.formats.vector_shards import VectorShard
from dpr.indexer.ranking import decode_ids
from dpr.storage.durable import MANIFEST, describe_file

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

    ``metadata`` are fields of the corpus, name -> kind (``dpr/formats/passage_metadata.py``).
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
        """Returns the kinds of the columns other than id and vector, by name."""
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
