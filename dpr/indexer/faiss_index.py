"""Search by faiss: ``flat`` (all products, in memory), ``hnsw`` (approximate, a graph) and ``hnsw_sq`` (the
same over 8-bit vectors).

HNSW finds the smallest L2 distance, not the largest dot product. As in DPR, phi is the largest squared norm
of all passage vectors; a passage gets the extra coordinate sqrt(phi - |x|^2), a query 0. Then all passages
are equally long and both orders agree. Scores returned are dot products of the query with the stored vector
(for ``hnsw_sq`` the one that 8 bits could hold), not distances.

faiss chooses the k passages by float32 products or distances. Among passages whose scores differ by less than
their rounding (copies of one text, near ties) it may choose others than exact search does where the list is
cut off; what is listed is scored and ordered exactly.

Building reads the vectors as a stream: once for phi and the ranges of the 8-bit quantiser, once to add them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from dpr.core import retired
from dpr.core.errors import InputError
from dpr.formats.arrays import PackedIds, pack_ids
from dpr.indexer.faiss_files import INDEX_FILE, read_engine, write_engine
from dpr.indexer.ranking import RunningTopK, SearchResult
from dpr.indexer.registry import Index
from dpr.indexer.settings import FlatSettings, GraphSettings
from dpr.indexer.vectors import (
    RowSource,
    VectorSource,
    blocks,
    check_finite,
    check_queries,
    common_dimension,
    id_chunks,
    paired_dots,
    refuse_overflow,
)
from dpr.storage.durable import read_json, write_json

_FACTS_FILE = "facts.json"


class FlatIndex(Index):
    """An index in memory that takes every product."""

    Settings = FlatSettings
    _augments: ClassVar[bool] = False
    """Whether vectors have the extra coordinate."""

    def __init__(self, engine: Any, ids: PackedIds, settings: Any, longest: float) -> None:
        self._engine, self._ids, self._settings, self._longest = engine, ids, settings, longest
        self.dimension = int(engine.d) - self._augments

    @property
    def num_passages(self) -> int:
        return int(self._engine.ntotal)

    @classmethod
    def build(
        cls, corpus: Sequence[RowSource], settings: Any, *, device: torch.device | str = "cpu"
    ) -> FlatIndex:
        """Indexes all vectors.

        With several threads a graph, and so what an approximate search misses, can differ between builds; a
        saved index does not change.
        """
        dimension = common_dimension(corpus)
        if not sum(source.num_vectors for source in corpus):
            raise InputError("no vectors to index")
        phi, corners = _ranges(corpus, settings.buffer_size, dimension) if cls._augments else (0.0, None)
        refuse_overflow(phi)
        engine = cls._engine_for(dimension, settings)
        if not engine.is_trained:
            engine.train(corners)  # the quantiser learns the range of each coordinate and nothing else
        for ids, vectors in blocks(corpus, settings.buffer_size):
            check_finite(ids, vectors)
            phi = max(phi, float(_squared_norms(vectors).max()))
            if cls._augments:
                extra = np.sqrt(np.maximum(phi - _squared_norms(vectors), 0.0))
                vectors = np.hstack([vectors, extra[:, None].astype(np.float32)])
            engine.add(vectors)
        return cls(engine, PackedIds(pack_ids(lambda: id_chunks(corpus))), settings, float(np.sqrt(phi)))

    def search(self, questions: np.ndarray, k: int, *, query_rows: int = 256) -> SearchResult:
        """Up to ``k`` passages per query (Q, D).

        Raises:
            InputError: queries of another width, that are not finite, or so long that a float32 product or
            distance overflows.
        """
        queries = check_queries(questions, self.dimension)
        best = RunningTopK(len(queries), min(k, self.num_passages) if k >= 1 else k)
        for start in range(0, len(queries), query_rows):
            tile = queries[start : start + query_rows]
            lengths = np.sqrt(_squared_norms(tile))
            refuse_overflow(
                float(
                    (
                        (lengths + self._longest) ** 2
                        if self._augments
                        else lengths * self._longest * self.dimension
                    ).max()
                )
            )
            nearest = self._nearest(tile, best.k)
            rows, places = np.nonzero(nearest >= 0)
            positions = nearest[rows, places]
            distinct, columns = np.unique(positions, return_inverse=True)
            stored = self._engine.reconstruct_batch(distinct)[:, : self.dimension]
            best.add(rows + start, paired_dots(tile, rows, stored, columns), self._ids[positions])
        return best.result()

    def save(self, folder: Path) -> None:
        write_engine(folder, self._engine, self._ids)
        write_json(folder / _FACTS_FILE, {"dimension": self.dimension, "longest": self._longest})

    @classmethod
    def open(cls, folder: Path, settings: Any) -> FlatIndex:
        """The saved index. faiss loads most damaged files silently, so everything its search relies on is
        checked here."""
        engine, ids = read_engine(folder)
        if not (folder / _FACTS_FILE).is_file():
            raise InputError(
                f"has no {_FACTS_FILE}",
                file=folder,
                hint=f"remove the folder to build the index again; {retired.FILES}",
            )
        facts = read_json(folder / _FACTS_FILE)
        dimension = facts["dimension"]
        if problem := cls._unlike(engine, dimension):
            raise InputError(
                f"is not an index of {len(ids)} vectors of {dimension} dimensions: {problem}",
                file=folder / INDEX_FILE,
            )
        return cls(engine, ids, settings, float(facts["longest"]))

    @classmethod
    def _engine_for(cls, dimension: int, settings: Any) -> Any:
        import faiss

        return faiss.IndexFlatIP(dimension)

    def _nearest(self, tile: np.ndarray, k: int) -> np.ndarray:
        """Positions (Q, k), -1 where there are fewer."""
        return np.asarray(self._engine.search(tile, k)[1])

    @classmethod
    def _unlike(cls, engine: Any, dimension: int) -> str | None:
        return _header_problem(engine, cls._engine_for(dimension, None), engine.ntotal)


class HnswIndex(FlatIndex):
    """An index in memory that follows a graph."""

    Settings = GraphSettings
    _augments = True
    breadth_setting = "ef_search"
    _links: ClassVar[int] = 512

    @property
    def breadth(self) -> int:
        return int(self._settings.ef_search)

    def breadths(self, k: int) -> list[int]:
        return [k, *(size for size in (1 << power for power in range(5, 12)) if size > k)]

    def search_with(self, breadth: int) -> None:
        self._settings = replace(self._settings, ef_search=breadth)

    @classmethod
    def _engine_for(cls, dimension: int, settings: Any) -> Any:
        engine = cls._empty(dimension + 1, settings.store_n or cls._links)
        engine.hnsw.efConstruction = settings.ef_construction
        return engine

    @classmethod
    def _empty(cls, dimension: int, links: int) -> Any:
        import faiss

        return faiss.IndexHNSWFlat(dimension, links)

    def _nearest(self, tile: np.ndarray, k: int) -> np.ndarray:
        self._engine.hnsw.efSearch = max(self._settings.ef_search, k)
        return super()._nearest(np.hstack([tile, np.zeros((len(tile), 1), dtype=np.float32)]), k)

    @classmethod
    def _unlike(cls, engine: Any, dimension: int) -> str | None:
        import faiss

        if type(engine) is not type(cls._empty(dimension + 1, 4)):
            return f"it is {type(engine).__name__}"
        graph, count = engine.hnsw, engine.ntotal
        levels, offsets, neighbors, steps = (
            faiss.rev_swig_ptr(values.data(), values.size()) if values.size() else np.zeros(0, dtype=np.int64)
            for values in (graph.levels, graph.offsets, graph.neighbors, graph.cum_nneighbor_per_level)
        )
        fresh = cls._empty(dimension + 1, int(steps[1]) // 2 if len(steps) > 1 and steps[1] > 1 else 4)
        storages = faiss.downcast_index(engine.storage), faiss.downcast_index(fresh.storage)
        problem = _header_problem(engine, fresh, count) or _header_problem(*storages, count)
        if problem:
            return problem
        is_graph = (
            np.array_equal(steps, faiss.vector_to_array(fresh.hnsw.cum_nneighbor_per_level))
            and len(levels) == count
            and len(offsets) == count + 1
            and offsets[0] == 0
            and levels.min() >= 1
            and levels.max() == graph.max_level + 1 < len(steps)
            and np.array_equal(np.diff(offsets), steps[levels])
            and len(neighbors) == offsets[-1]
            and neighbors.min() >= -1
            and neighbors.max() < count
            and 0 <= graph.entry_point < count
            and levels[graph.entry_point] == graph.max_level + 1
        )
        return None if is_graph else "the links of its graph lead outside"


class Hnsw32Index(HnswIndex):
    """A graph with 32 links a vector: a fraction of the memory and of the time of building, for about the
    same recall."""

    _links = 32


class HnswSqIndex(HnswIndex):
    """The same over vectors of 8 bits a coordinate."""

    _links = 128

    @classmethod
    def _empty(cls, dimension: int, links: int) -> Any:
        import faiss

        make: Any = faiss.IndexHNSWSQ  # its stub has the arguments of another constructor
        return make(dimension, faiss.ScalarQuantizer.QT_8bit, links)


def _header_problem(engine: Any, fresh: Any, count: int) -> str | None:
    """How an index differs from an empty one of the same kind in what does not depend on the vectors; then
    its sizes."""
    if type(engine) is not type(fresh):
        return f"it is {type(engine).__name__}"
    for name in ("d", "metric_type", "metric_arg", "code_size"):
        if getattr(engine, name, None) != getattr(fresh, name, None):
            return f"{name} is {getattr(engine, name)}"
    if not engine.is_trained or engine.ntotal != count:
        return f"ntotal is {engine.ntotal}" if engine.is_trained else "it is not trained"
    if hasattr(engine, "codes") and engine.codes.size() != count * engine.code_size:
        return f"it holds {engine.codes.size()} bytes of vectors"
    if hasattr(engine, "sq"):
        ours, theirs = engine.sq, fresh.sq
        if any(
            getattr(ours, name) != getattr(theirs, name)
            for name in ("d", "qtype", "code_size", "rangestat", "bits")
        ):
            return "its quantiser is another"
        if ours.trained.size() != 2 * engine.d:
            return "its quantiser lacks the ranges of the coordinates"
    return None


def _squared_norms(vectors: np.ndarray) -> np.ndarray:
    return np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)


def _ranges(sources: Sequence[VectorSource], buffer_size: int, dimension: int) -> tuple[float, np.ndarray]:
    """phi, and the least and the largest value of each augmented coordinate (2, D + 1)."""
    least_norm, phi = np.inf, 0.0
    low, high = np.full(dimension, np.inf), np.full(dimension, -np.inf)
    for ids, vectors in blocks(sources, buffer_size):
        check_finite(ids, vectors)
        norms = _squared_norms(vectors)
        least_norm, phi = min(least_norm, float(norms.min())), max(phi, float(norms.max()))
        low, high = np.minimum(low, vectors.min(axis=0)), np.maximum(high, vectors.max(axis=0))
    low, high = np.append(low, 0.0), np.append(high, np.sqrt(phi - least_norm))
    return phi, np.stack([low, high]).astype(np.float32)
