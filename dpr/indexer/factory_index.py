"""Indexes that faiss makes of a string of its ``index_factory``, e.g. ``IVF4096,PQ64``: learned from a sample,
filled block by block.

``ivf`` and ``small`` are strings that need no choice: lists of vectors of 8 bits a number, and lists of one bit
a number (RaBitQ), whose best passages ``small`` scores again from the vectors themselves, so that its scores
are those of exact search, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from dpr.core.errors import ConfigError, InputError
from dpr.core.seeding import generator_for
from dpr.formats.arrays import PackedIds, pack_ids
from dpr.indexer.faiss_files import INDEX_FILE, read_engine, write_engine
from dpr.indexer.ranking import RunningTopK, SearchResult
from dpr.indexer.registry import Index
from dpr.indexer.settings import FactorySettings, SmallSettings
from dpr.indexer.vectors import (
    AllRows,
    RowSource,
    blocks,
    check_finite,
    check_queries,
    common_dimension,
    id_chunks,
    paired_dots,
    refuse_overflow,
)

_MOST_LISTS = 1 << 16
_SAMPLED_PER_LIST, _LEAST_SAMPLE = 64, 1 << 14
_AT_ONCE = 16
"""faiss compares fewer than 20 questions with centres one by one, so that what is found does not depend on who
else asks."""
_QUESTION_TO_CENTRE = 4.0
_LONGEST = float(np.sqrt(np.finfo(np.float32).max))


class FactoryIndex(Index):
    """Whatever ``indexer.factory`` names. Scores are those of faiss, of what it stores of a vector."""

    Settings = FactorySettings
    _codes: ClassVar[str] = ""
    """What lists hold where ``indexer.factory`` is not set."""

    def __init__(self, engine: Any, ids: PackedIds, settings: Any) -> None:
        import faiss

        self._engine, self._ids = engine, ids
        self._settings = settings
        self._lists: Any = faiss.try_extract_index_ivf(engine)
        self.dimension = int(engine.d)
        self.breadth_setting = "" if self._lists is None else "probes"
        if self._lists is not None:
            self.search_with(settings.probes or max(8, self._lists.nlist // 4))

    @property
    def num_passages(self) -> int:
        return int(self._engine.ntotal)

    @property
    def breadth(self) -> int:
        return 0 if self._lists is None else int(self._lists.nprobe)

    def breadths(self, k: int) -> list[int]:
        """About three values for each doubling, up to all lists."""
        lists = int(self._lists.nlist)
        return sorted({min(round(2 ** (third / 3)), lists) for third in range(3 * lists.bit_length() + 1)})

    def search_with(self, breadth: int) -> None:
        self._lists.nprobe = min(breadth, self._lists.nlist)

    @classmethod
    def build(
        cls, corpus: Sequence[RowSource], settings: Any, *, device: torch.device | str = "cpu"
    ) -> FactoryIndex:
        """Learns from a sample of the vectors, then adds all of them; only what faiss stores of them is held."""
        rows = AllRows(corpus)
        dimension = common_dimension(corpus)
        if not rows.num_rows:
            raise InputError("no vectors to index")
        engine = cls._learned(cls._factory(settings, rows.num_rows), dimension, rows)
        for ids, vectors in blocks(corpus, settings.buffer_size):
            check_finite(ids, vectors)
            refuse_overflow(float(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64).max()))
            engine.add(vectors)
        index = cls(engine, PackedIds(pack_ids(lambda: id_chunks(corpus))), settings)
        index.use_vectors(corpus)
        return index

    def search(self, questions: np.ndarray, k: int) -> SearchResult:
        """``k`` passages per query (Q, D), or all of them where there are fewer.

        Raises:
            InputError: queries of another width, that are not finite, or so long that a float32 product
            overflows; a damaged index.
        """
        queries = check_queries(questions, self.dimension)
        best = RunningTopK(len(queries), min(k, self.num_passages) if k >= 1 else k)
        for start in range(0, len(queries), _AT_ONCE):
            tile = queries[start : start + _AT_ONCE]
            longest = float(np.linalg.norm(tile.astype(np.float64), axis=1).max())
            refuse_overflow(longest * _LONGEST * self.dimension)
            scores, places = self._nominated(tile, best.k)
            rows, columns = np.nonzero(places >= 0)
            nominated = places[rows, columns]
            if len(nominated) and int(nominated.max()) >= self.num_passages:
                what = f"the index names row {int(nominated.max())} of {self.num_passages} vectors"
                raise InputError(what, hint="remove its folder to build it again")
            best.add(rows + start, *self._scored(tile, rows, nominated, scores[rows, columns]))
        return best.result()

    def save(self, folder: Path) -> None:
        write_engine(folder, self._engine, self._ids)

    @classmethod
    def open(cls, folder: Path, settings: Any) -> FactoryIndex:
        """The saved index, mapped. faiss loads most damaged files silently, so what a search relies on is
        checked here."""
        import faiss

        engine, ids = read_engine(folder)
        fresh = cls._empty(cls._factory(settings, len(ids)), int(engine.d))
        lists = faiss.try_extract_index_ivf(engine)
        problem = _unlike(engine, fresh)
        if not problem and lists is not None:
            problem = _unlike(lists, faiss.try_extract_index_ivf(fresh)) or _lists_problem(lists)
        if problem:
            raise InputError(
                f"is not what {cls._factory(settings, len(ids))} makes of {len(ids)} vectors: {problem}",
                file=folder / INDEX_FILE,
            )
        return cls(engine, ids, settings)

    @classmethod
    def _factory(cls, settings: Any, num_vectors: int) -> str:
        """The string that faiss gets."""
        if settings.factory or not cls._codes:
            return str(settings.factory)
        lists = min(_MOST_LISTS, 1 << max(0, round(np.log2(2 * np.sqrt(num_vectors)))), num_vectors)
        return f"IVF{lists},{cls._codes}"

    @classmethod
    def _empty(cls, factory: str, dimension: int) -> Any:
        import faiss

        if not factory:
            raise ConfigError(
                'indexer.factory is not set; name what faiss is to make, e.g. indexer.factory="IVF4096,SQ8"'
            )
        try:
            return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            message = f"indexer.factory={factory}, for vectors of {dimension} numbers"
            raise ConfigError(f"{message}: faiss says {_reason(error)}") from None

    @classmethod
    def _learned(cls, factory: str, dimension: int, rows: AllRows) -> Any:
        import faiss

        engine = cls._empty(factory, dimension)
        if engine.is_trained:
            return engine
        lists = faiss.try_extract_index_ivf(engine)
        wanted = _LEAST_SAMPLE
        if lists is not None:
            wanted = max(wanted, _SAMPLED_PER_LIST * lists.nlist)
            lists.cp.min_points_per_centroid = 1  # few vectors are few lists, which faiss need not warn of
        count = min(wanted, rows.num_rows)
        sample = generator_for(0, rows.num_rows, count).choice(rows.num_rows, count, replace=False)
        ids, vectors = rows.take(np.sort(sample))
        check_finite(ids, vectors)
        try:
            engine.train(np.ascontiguousarray(vectors))
        except RuntimeError as error:
            message = f"indexer.factory={factory} cannot be learned from {count:,} vectors"
            raise ConfigError(f"{message}: {_reason(error)}") from None
        return engine

    def _nominated(
        self, tile: np.ndarray, depth: int, least: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores and rows (q, depth), -1 where there are fewer; where lists hold fewer than ``least``, by
        default ``depth``, more lists are searched."""
        import faiss

        scores, places = self._engine.search(tile, depth)
        breadth = self.breadth
        while isinstance(self._engine, faiss.IndexIVF) and breadth < self._engine.nlist:
            short = np.flatnonzero((places >= 0).sum(axis=1) < (least or depth))
            if not len(short):
                break
            breadth = min(2 * breadth, self._engine.nlist)
            broader = faiss.SearchParametersIVF()
            broader.nprobe = breadth
            scores[short], places[short] = self._engine.search(tile[short], depth, params=broader)
        return scores, places

    def _scored(
        self, tile: np.ndarray, rows: np.ndarray, places: np.ndarray, scores: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores and ids of what was nominated."""
        return scores, self._ids[places]


class IvfIndex(FactoryIndex):
    """Lists of vectors of 8 bits a number."""

    _codes = "SQ8"


class SmallIndex(FactoryIndex):
    """Lists that nominate, of one bit a number unless ``indexer.factory`` says otherwise; the vectors
    themselves score. A corpus that has no more passages than would be nominated is searched exactly."""

    Settings = SmallSettings
    needs_vectors = True
    _codes = "RaBitQ"
    _vectors: AllRows

    def use_vectors(self, corpus: Sequence[RowSource]) -> None:
        self._vectors = AllRows(corpus)

    @classmethod
    def _learned(cls, factory: str, dimension: int, rows: AllRows) -> Any:
        """Centres are learned as directions, of length 1. One length for all, that of the vectors, makes what
        single bits have to tell, the difference between a vector and its centre, small; so estimates of
        different lists can be compared. Which centre is nearest does not change."""
        import faiss

        engine = super()._learned(factory, dimension, rows)
        if isinstance(engine, faiss.IndexIVFRaBitQ):
            some = np.arange(min(rows.num_rows, _LEAST_SAMPLE))
            centres = faiss.downcast_index(engine.quantizer)
            length = float(centres.search(np.ascontiguousarray(rows.take(some)[1]), 1)[0].mean())
            if length > 0:
                moved = centres.reconstruct_n(0, centres.ntotal) * np.float32(length)
                centres.reset()
                centres.add(moved)
        return engine

    def _nominated(
        self, tile: np.ndarray, depth: int, least: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        import faiss

        candidates = min(max(self._settings.candidates, 4 * depth), self.num_passages)
        if candidates == self.num_passages:  # so few that there is nothing to choose: the search is exact
            places = np.broadcast_to(np.arange(candidates), (len(tile), candidates))
            return np.zeros(places.shape, dtype=np.float32), places
        if isinstance(self._engine, faiss.IndexIVFRaBitQ):
            # The error of an estimate grows with |question - centre|, so it would drown the product with a
            # question that is far shorter than the centres; the order of products does not depend on its
            # length.
            length = _QUESTION_TO_CENTRE * float(np.linalg.norm(self._engine.quantizer.reconstruct(0)))
            lengths = np.linalg.norm(tile, axis=1, keepdims=True)
            tile = tile * (length / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
        return super()._nominated(tile, candidates, depth)

    def _scored(
        self, tile: np.ndarray, rows: np.ndarray, places: np.ndarray, scores: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if not len(places):
            return scores, np.empty(0, dtype="S1")
        distinct, columns = np.unique(places, return_inverse=True)
        ids, vectors = self._vectors.take(distinct)
        return paired_dots(tile, rows, vectors, columns), ids[columns]


def _reason(error: Exception) -> str:
    """What faiss says, without the place in its code."""
    return str(error).strip().splitlines()[-1].rpartition(": ")[2] or type(error).__name__


def _unlike(engine: Any, fresh: Any) -> str:
    """How an index differs from an empty one of the same string in what does not depend on the vectors."""
    if not isinstance(engine, type(fresh)):
        return f"it is {type(engine).__name__}"
    if not engine.is_trained:
        return "it is not trained"
    pairs = (
        (engine, fresh, "d metric_type metric_arg code_size by_residual nlist qb"),
        (getattr(engine, "sq", None), getattr(fresh, "sq", None), "d qtype code_size rangestat bits"),
        (getattr(engine, "pq", None), getattr(fresh, "pq", None), "d M nbits dsub ksub code_size"),
        (getattr(engine, "rabitq", None), getattr(fresh, "rabitq", None), "d code_size metric_type nb_bits"),
    )
    for ours, theirs, names in pairs:
        for name in names.split():
            if getattr(ours, name, None) != getattr(theirs, name, None):
                return f"{name} is {getattr(ours, name, None)}"
    if hasattr(engine, "sq") and engine.sq.trained.size() != fresh.d * 2:
        return "its quantiser lacks the ranges of the coordinates"
    return ""


def _lists_problem(lists: Any) -> str:
    """What is wrong with the centres and the lists of an index."""
    import faiss

    centres: Any = faiss.downcast_index(lists.quantizer)
    if centres.d != lists.d or centres.ntotal != lists.nlist or lists.invlists.nlist != lists.nlist:
        return f"it has {centres.ntotal} centres and {lists.invlists.nlist} lists"
    if hasattr(centres, "codes") and centres.codes.size() != lists.nlist * centres.code_size:
        return f"its centres have {centres.codes.size()} bytes"
    if lists.invlists.code_size != lists.code_size:
        return f"its lists hold codes of {lists.invlists.code_size} bytes"
    held = sum(lists.invlists.list_size(number) for number in range(lists.nlist))
    return "" if held == lists.ntotal else f"its lists hold {held} vectors"
