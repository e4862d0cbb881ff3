"""Vectors joined with the passages they were made from, as a stream of batches; neither is ever held whole.

Vectors stand in their shards in the order of the corpus, so one pass over the corpus finds the passage of
each.
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
from dpr.formats.corpora import read_metadata
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
    """All rows of some shards. Without ``sources`` they have an id and a vector alone.

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
        """Whether vectors are float16; otherwise they are float32, codes decoded."""
        return all(shard.dtype == "float16" for shard in self.shards)

    @property
    def columns(self) -> dict[str, str]:
        """Kinds of the columns beside id and vector, by name."""
        return {"title": "text", "text": "text", **self.metadata} if self.sources else {}

    def made_of(self) -> dict[str, Any]:
        """What decides the rows; reads every corpus, or finds its hash in the cache."""
        vectors = "\n".join(describe_file(shard.path / MANIFEST)["sha256"] for shard in self.shards)
        corpus = json.dumps([source.identity() for source in self.sources], sort_keys=True)
        return {
            "vectors": text_sha256(vectors)[:32],
            "corpus": text_sha256(corpus)[:32] if self.sources else "",
            "metadata": dict(self.metadata),
            "rows": self.num_rows,
        }

    def facts(self) -> dict[str, Any]:
        """What a store should say of its vectors: the model that made them, and how they are compared."""
        first = self.shards[0].metadata
        return {
            "dimension": self.dimension,
            "similarity": "dot",
            "model_fingerprint": str(first.get("model_fingerprint", "")),
        }

    def batches(self) -> Iterator[RowBatch]:
        """All rows.

        Raises:
            InputError: a passage of the vectors is not in the corpus, or they are in another order.
        """
        passages = self._passages()
        for shard in self.shards:
            for keys, vectors in shard.chunks():
                for start in range(0, len(keys), self.batch_rows):
                    part = slice(start, start + self.batch_rows)
                    ids = decode_ids(keys[part])
                    yield self._batch(ids, vectors[part], self._joined(ids, passages, shard), shard)

    def _passages(self) -> Iterator[_Found]:
        for source in self.sources:
            values = read_metadata(source.file, self.metadata) if self.metadata else repeat(())
            yield from zip(source.read(), values)  # both have one item a passage

    def _joined(self, ids: Sequence[str], passages: Iterator[_Found], shard: VectorShard) -> list[_Found]:
        if not self.sources:
            return []
        prefixes = {source.id_prefix for source in self.sources}
        matches = []
        for key in ids:
            wanted = {key, *(prefix + key for prefix in prefixes)}
            match = next((item for item in passages if item[0].id in wanted), None)
            if match is None:
                hint = (
                    "ctx_datasets must name the files the vectors were made from, in their order, with the"
                    " same id_prefix"
                )
                files = ", ".join(str(source.file) for source in self.sources)
                raise InputError(
                    f"no passage {key!r} after those of the vectors before it in {shard.path}",
                    file=files,
                    hint=hint,
                )
            matches.append(match)
        return matches

    def _batch(
        self, ids: list[str], vectors: np.ndarray, matches: list[_Found], shard: VectorShard
    ) -> RowBatch:
        numbers = np.ascontiguousarray(vectors, dtype=np.float16 if self.is_half else np.float32)
        if not np.isfinite(numbers).all():
            raise InputError(
                "holds NaN or infinity", file=shard.path, hint="embed the corpus again with an intact model"
            )
        if not matches:
            return RowBatch(ids, numbers, {})
        passages, values = zip(*matches, strict=True)
        columns: dict[str, list[Any]] = {
            "title": [item.title for item in passages],
            "text": [item.text for item in passages],
        }
        columns |= {name: [row[place] for row in values] for place, name in enumerate(self.metadata)}
        return RowBatch([str(item.id) for item in passages], numbers, columns)
