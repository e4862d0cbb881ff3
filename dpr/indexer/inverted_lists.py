"""Inverted lists: a search looks into the few lists whose centres are nearest to the question (faiss's IVF),
in files that are mapped.

``ivf`` keeps 8 bits a coordinate and scores with them. ``small`` keeps one bit a coordinate (RaBitQ) and no
ids; what it nominates is scored again from the vectors themselves, so its scores are those of exact search,
bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from dpr.core.errors import InputError
from dpr.formats.arrays import PackedIds, pack_ids
from dpr.indexer.list_building import (
    IDS_FILE,
    LISTS_FILE,
    QUANTISER_FILE,
    SIZES_FILE,
    ListFile,
    attach,
    build_in_steps,
    fill,
    read_sizes,
    read_trained,
    trained,
)
from dpr.indexer.ranking import RunningTopK, SearchResult
from dpr.indexer.registry import Index
from dpr.indexer.settings import ListSettings, SmallSettings
from dpr.indexer.vectors import (
    AllRows,
    RowSource,
    check_queries,
    common_dimension,
    id_chunks,
    paired_dots,
    refuse_overflow,
)

_NO_BLAS = 16
"""faiss compares fewer than 20 questions with the centres one by one, so that what is near does not depend on
who else asks."""
_QUESTION_TO_CENTRE = 4.0
_LONGEST = float(np.sqrt(np.finfo(np.float32).max))


class IvfIndex(Index):
    """Lists of vectors of 8 bits a coordinate, with their ids."""

    Settings = ListSettings
    breadth_setting = "probes"
    is_built_in_steps = True
    _query_rows: ClassVar[int] = 256

    def __init__(self, engine: Any, ids: PackedIds | None, settings: Any) -> None:
        self._engine, self._ids, self._settings = engine, ids, settings
        self.dimension = int(engine.d)
        self.search_with(settings.probes or max(8, engine.nlist // 4))

    @property
    def num_passages(self) -> int:
        return int(self._engine.ntotal)

    @property
    def breadth(self) -> int:
        return int(self._engine.nprobe)

    def breadths(self, k: int) -> list[int]:
        """About three values for each doubling, up to all lists."""
        lists = int(self._engine.nlist)
        return sorted({min(round(2 ** (third / 3)), lists) for third in range(3 * lists.bit_length() + 1)})

    def search_with(self, breadth: int) -> None:
        self._engine.nprobe = min(breadth, self._engine.nlist)

    @classmethod
    def build(
        cls, corpus: Sequence[RowSource], settings: Any, *, device: torch.device | str = "cpu"
    ) -> IvfIndex:
        """Lists of all vectors, in memory."""
        dimension, rows = common_dimension(corpus), AllRows(corpus)
        engine = trained(rows, dimension, settings, cls._empty, has_close_centres=cls.needs_vectors)
        fill(engine, rows, range(rows.num_rows), settings.buffer_size)
        ids = None if cls.needs_vectors else PackedIds(pack_ids(lambda: id_chunks(corpus)))
        index = cls(engine, ids, settings)
        index.use_vectors(corpus)
        return index

    @classmethod
    def build_in(
        cls,
        folder: Path,
        corpus: Sequence[RowSource],
        settings: Any,
        *,
        work: Path,
        made_of: Mapping[str, Any],
    ) -> None:
        dimension, rows = common_dimension(corpus), AllRows(corpus)
        build_in_steps(
            folder,
            rows,
            settings,
            train=lambda: trained(rows, dimension, settings, cls._empty, has_close_centres=cls.needs_vectors),
            read=lambda file: read_trained(file, cls._empty),
            ids=None if cls.needs_vectors else lambda: id_chunks(corpus),
            work=work,
            made_of={**made_of, "num_vectors": rows.num_rows},
        )

    @classmethod
    def open(cls, folder: Path, settings: Any) -> IvfIndex:
        """The saved index, its lists memory-mapped."""
        engine = read_trained(folder / QUANTISER_FILE, cls._empty)
        attach(
            engine,
            ListFile(folder / LISTS_FILE, read_sizes(folder / SIZES_FILE, engine.nlist), engine.code_size),
        )
        ids = None if cls.needs_vectors else PackedIds.mapped(folder / IDS_FILE)
        if ids is not None and len(ids) != engine.ntotal:
            raise InputError(f"{len(ids)} ids for {engine.ntotal} vectors", file=folder)
        return cls(engine, ids, settings)

    def search(self, questions: np.ndarray, k: int) -> SearchResult:
        """``k`` passages per query (Q, D), or all of them where there are fewer; where its lists hold fewer,
        it looks into more lists.

        Raises:
            InputError: queries of another width, that are not finite, or so long that a float32 product
            overflows; a damaged index.
        """
        queries = check_queries(questions, self.dimension)
        best = RunningTopK(len(queries), min(k, self.num_passages) if k >= 1 else k)
        for start in range(0, len(queries), self._query_rows):
            tile = queries[start : start + self._query_rows]
            refuse_overflow(
                float(np.linalg.norm(tile.astype(np.float64), axis=1).max()) * _LONGEST * self.dimension
            )
            scores, places = self._nominated(tile, self._depth(best.k), best.k)
            rows, columns = np.nonzero(places >= 0)
            nominated = places[rows, columns]
            if len(nominated) and int(nominated.max()) >= self.num_passages:
                what = f"the index names row {int(nominated.max())} of {self.num_passages} vectors"
                raise InputError(what, hint="remove its folder to build it again")
            best.add(rows + start, *self._scored(tile, rows, nominated, scores[rows, columns]))
        return best.result()

    def _depth(self, k: int) -> int:
        """Passages to nominate for each question."""
        return k

    def _nominated(self, tile: np.ndarray, depth: int, least: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and rows (q, depth), -1 where there are fewer, but not fewer than ``least``: for those more
        lists are looked into."""
        import faiss

        parts = [tile[start : start + _NO_BLAS] for start in range(0, len(tile), _NO_BLAS)]
        near, lists = (
            np.concatenate(column)
            for column in zip(
                *(self._engine.quantizer.search(part, self.breadth) for part in parts), strict=True
            )
        )
        scores, places = self._engine.search_preassigned(tile, depth, lists, near)
        breadth = self.breadth
        while breadth < self._engine.nlist and len(
            short := np.flatnonzero((places >= 0).sum(axis=1) < least)
        ):
            breadth = min(2 * breadth, self._engine.nlist)
            broader = faiss.SearchParametersIVF()
            broader.nprobe = breadth
            for start in range(0, len(short), _NO_BLAS):
                rows = short[start : start + _NO_BLAS]
                scores[rows], places[rows] = self._engine.search(tile[rows], depth, params=broader)
        return scores, places

    def _scored(
        self, tile: np.ndarray, rows: np.ndarray, places: np.ndarray, scores: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores and ids of what was nominated."""
        assert self._ids is not None
        return scores, self._ids[places]

    @classmethod
    def _empty(cls, dimension: int, lists: int) -> Any:
        import faiss

        kind = faiss.ScalarQuantizer.QT_8bit
        return _owning(
            lambda centres: faiss.IndexIVFScalarQuantizer(
                centres, dimension, lists, kind, faiss.METRIC_INNER_PRODUCT
            ),
            dimension,
        )


class SmallIndex(IvfIndex):
    """Lists of one bit a coordinate, which nominate; the vectors themselves score. A corpus that has no more
    passages than would be nominated is searched exactly."""

    Settings = SmallSettings
    needs_vectors = True
    _query_rows = 64
    _vectors: AllRows

    def __init__(self, engine: Any, ids: PackedIds | None, settings: Any) -> None:
        super().__init__(engine, ids, settings)
        # The error of an estimate grows with |question - centre|, so it would drown the product with a
        # question that is far shorter than the centres. The order of products does not depend on a question's
        # length. Indexes of earlier versions have centres of length 1 and are searched as they were when
        # their recall was measured.
        length = float(np.linalg.norm(engine.quantizer.reconstruct(0))) if engine.nlist else 1.0
        self._query_length = 0.0 if abs(length - 1) < 1e-5 else _QUESTION_TO_CENTRE * length

    def use_vectors(self, corpus: Sequence[RowSource]) -> None:
        self._vectors = AllRows(corpus)

    def _depth(self, k: int) -> int:
        return min(max(self._settings.candidates, 4 * k), self.num_passages)

    def _nominated(self, tile: np.ndarray, depth: int, least: int) -> tuple[np.ndarray, np.ndarray]:
        if depth == self.num_passages:  # so few that there is nothing to choose: the search is exact
            places = np.broadcast_to(np.arange(depth), (len(tile), depth))
            return np.zeros(places.shape, dtype=np.float32), places
        if self._query_length:
            lengths = np.linalg.norm(tile, axis=1, keepdims=True)
            tile = tile * (self._query_length / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
        return super()._nominated(tile, depth, least)

    def _scored(
        self, tile: np.ndarray, rows: np.ndarray, places: np.ndarray, scores: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if not len(places):
            return scores, np.empty(0, dtype="S1")
        distinct, columns = np.unique(places, return_inverse=True)
        ids, vectors = self._vectors.take(distinct)
        return paired_dots(tile, rows, vectors, columns), ids[columns]

    @classmethod
    def _empty(cls, dimension: int, lists: int) -> Any:
        import faiss

        return _owning(
            lambda centres: faiss.IndexIVFRaBitQ(centres, dimension, lists, faiss.METRIC_INNER_PRODUCT),
            dimension,
        )


def _owning(make: Any, dimension: int) -> Any:
    """A faiss index with the centres of its lists, which it frees."""
    import faiss

    centres: Any = faiss.IndexFlatIP(dimension)
    engine = make(centres)
    engine.own_fields = True
    centres.this.disown()
    return engine
