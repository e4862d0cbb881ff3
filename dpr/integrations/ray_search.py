"""Exact search on the machines of a cluster: each worker searches a shard, and the best of all are merged.

1. The question vectors are written to a folder that all machines share.
2. A worker verifies its shard, searches it, and writes the best of it beside them. The folder is named by all
   that decides the result, so that a rerun of the same command finds it.
3. The parts are merged by the rule of every index. Scores do not depend on what stands beside a vector, so
   the result is that of one process, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.compute_settings import ClusterSettings
from dpr.core.errors import InputError
from dpr.core.hashes import text_sha256
from dpr.core.progress import Progress
from dpr.formats.vector_shards import VectorShard
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import RunningTopK, SearchResult, encode_ids
from dpr.indexer.registry import Index
from dpr.indexer.vectors import PrefixedSource, check_queries, common_dimension
from dpr.integrations.ray_cluster import share_out
from dpr.storage.durable import MANIFEST, describe_file, durable_folder, verify_folder


@dataclass(frozen=True)
class ClusterSearch:
    """How a cluster searches: ``work`` is a folder that all its machines share; ``device`` is the setting of
    that name."""

    work: Path
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    block_rows: int = 65536
    device: str | None = None


@dataclass(frozen=True)
class ShardSearch:
    """The search of one shard, which ``run`` does in whatever process it is called."""

    shard: Path
    prefix: str
    questions: Path
    k: int
    block_rows: int
    target: Path

    def run(self) -> None:
        """Writes ``scores.npy`` and ``ids.npy``, the lists of all questions end to end, and ``counts.npy``,
        their lengths.

        Raises:
            InputError: the shard is damaged, or a score overflows.
        """
        shard = VectorShard(self.shard)
        index = ExactIndex(
            [PrefixedSource(shard, self.prefix) if self.prefix else shard],
            device="cuda" if torch.cuda.is_available() else "cpu",
            block_rows=self.block_rows,
        )
        scores, ids = index.search(np.load(self.questions / "vectors.npy", allow_pickle=False), self.k)
        counts = np.array([len(listed) for listed in ids])
        with durable_folder(self.target, overwrite=True) as folder:
            np.save(
                folder / "scores.npy",
                scores[np.arange(scores.shape[1]) < counts[:, None]],
                allow_pickle=False,
            )
            np.save(
                folder / "ids.npy", encode_ids([key for listed in ids for key in listed]), allow_pickle=False
            )
            np.save(folder / "counts.npy", counts, allow_pickle=False)

    @property
    def is_done(self) -> bool:
        return self.target.is_dir() and not verify_folder(self.target)

    def add_to(self, best: RunningTopK) -> None:
        """Offers what was found."""
        scores, ids, counts = (
            np.load(self.target / f"{name}.npy", allow_pickle=False) for name in ("scores", "ids", "counts")
        )
        best.add(np.repeat(np.arange(len(counts)), counts), scores, ids)


class ClusterIndex(Index):
    """Shards of vectors, searched by the workers of a cluster."""

    is_saved = False  # it is the vectors themselves
    Settings = ClusterSearch

    def __init__(self, corpus: Sequence[VectorShard | PrefixedSource], search: ClusterSearch) -> None:
        self._corpus, self._search = corpus, search
        self.dimension = common_dimension(corpus)

    @classmethod
    def build(
        cls, corpus: Sequence[Any], settings: ClusterSearch, *, device: torch.device | str = "cpu"
    ) -> ClusterIndex:
        """``corpus``: shards on disk, with the prefix of their ids or without.

        Raises:
            InputError: vectors that are no shards.
        """
        for source in corpus:
            shard = source.source if isinstance(source, PrefixedSource) else source
            if not isinstance(shard, VectorShard):
                raise InputError(
                    "are no vectors of dpr embed",
                    file=getattr(shard, "path", None),
                    hint="search them without cluster=ray",
                )
        return cls(corpus, settings)

    @property
    def num_passages(self) -> int:
        return sum(source.num_vectors for source in self._corpus)

    def search(self, questions: Any, k: int) -> SearchResult:
        queries = check_queries(questions, self.dimension)
        best = RunningTopK(len(queries), min(k, max(self.num_passages, 1)))
        if not len(queries):
            return best.result()
        parts = self._parts(queries, best.k)
        missing = [part for part in parts if not part.is_done]
        search = self._search
        progress = Progress("searching", len(parts), unit="shards", done=len(parts) - len(missing))
        for _ in share_out(
            search.cluster,
            ShardSearch.run,
            missing,
            what="searching",
            folder=search.work,
            device=search.device,
        ):
            progress.advance(1, 0)
        progress.close()
        for part in parts:
            part.add_to(best)
        return best.result()

    def _parts(self, queries: np.ndarray, k: int) -> list[ShardSearch]:
        """The searches of all shards; writes the vectors of the questions that they need."""
        asked = sha256(queries.tobytes()).hexdigest()[:24]
        questions = self._search.work / f"questions-{asked}"
        if not questions.is_dir():
            with durable_folder(questions) as folder:
                np.save(folder / "vectors.npy", queries, allow_pickle=False)
        parts = []
        for source in self._corpus:
            shard, prefix = (
                (source.source, source.prefix) if isinstance(source, PrefixedSource) else (source, "")
            )
            assert isinstance(shard, VectorShard)
            if shard.num_vectors:
                facts = [asked, str(k), prefix, describe_file(shard.path / MANIFEST)["sha256"]]
                results = self._search.work / f"found-{text_sha256(chr(10).join(facts))[:24]}"
                parts.append(ShardSearch(shard.path, prefix, questions, k, self._search.block_rows, results))
        return parts
