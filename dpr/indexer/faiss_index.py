"""Indexes of faiss: any that its ``index_factory`` makes from a string, trained on a sample and filled block
by block.

``ivf`` and ``small`` have default strings: lists of vectors with 8 and with 4 bits a number. ``flat``
computes all products. ``hnsw``, ``hnsw32`` and ``hnsw_sq`` are graphs that follow the largest dot product. In
DPR they follow the smallest L2 distance, after an extra coordinate has made all passages equally long. If
lengths differ, faiss then finds fewer of the best passages: recall@100 was 0.31 instead of 0.98 on generated
vectors with log-normal lengths. On vectors of equal length both reach 0.99.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import counted, get_logger
from dpr.core.seeding import generator_for
from dpr.core.settings import Settings
from dpr.formats.packed_ids import PackedIds, pack_ids
from dpr.indexer.ranking import RunningTopK, SearchResult
from dpr.indexer.registry import DEPTH, Index, recall_values
from dpr.indexer.settings import FactorySettings, GraphSettings
from dpr.indexer.vectors import (
    VectorSource,
    blocks,
    check_finite,
    check_queries,
    common_dimension,
    paired_dots,
    refuse_overflow,
    take_rows,
)
from dpr.storage.durable import durable_file

logger = get_logger(__name__)

INDEX_FILE = "index.faiss"
IDS_FILE = "ids.npy"
TARGET_RECALL = 0.95
_NEARLY = 0.995
"""Share of a recall that comes near it."""
_ADDED_AT_ONCE = 50_000
_ENCODED_AT_ONCE = 1 << 10
"""Vectors that are encoded at a time; product quantization makes a table of M x 256 numbers for each."""
_MOST_LISTS = 1 << 16
_SAMPLED_PER_LIST = 64
_LEAST_SAMPLE = 1 << 14
_LONGEST = float(np.sqrt(np.finfo(np.float32).max))
_LEAST_LIMIT = 1 << 26
"""Bytes of an array that faiss may always make, however small its file is. It counts a transform of D
dimensions as D x D numbers, whether they are stored or not."""
_FACTORY = re.compile(r"(?!.*(NSG|_Nc|Refine\((?!Flat\)|SQ)))[A-Za-z0-9_,()+-]{1,200}")
"""Factory string without the parts on which faiss can crash or run forever: NSG if vectors are equal, some
norms of additive quantizers, refining by an index without scores of single vectors, and very long strings."""
_NUMBER = re.compile("([A-Za-z]*)([0-9]+)")
_LARGEST = 4096
"""Largest number in a factory string, except the number of lists."""
_DECISIVE = "d metric_type metric_arg code_size by_residual nlist qb qtype bits M nbits ksub nb_bits".split()


class FaissIndex(Index):
    """Any index that ``indexer.factory`` names, by default lists of vectors with 8 bits a number. Scores are
    those of faiss, computed from its stored form of the vectors."""

    Settings: ClassVar[type[Any]] = FactorySettings
    _codes: ClassVar[str] = "SQ8"
    """Content of the lists if ``indexer.factory`` is not set."""
    _is_scored_again: ClassVar[bool] = False
    """True if scores are products with the stored vectors, in place of those of faiss."""
    _asked_at_once: ClassVar[int] = 16
    """Questions in a call of faiss. It compares fewer than 20 with the centres one by one, so that a result
    does not depend on the other questions."""

    def __init__(self, engine: Any, ids: PackedIds, settings: Any) -> None:
        import faiss

        self._engine = engine
        self._ids = ids
        self._settings = settings
        self._lists: Any = faiss.try_extract_index_ivf(engine)
        if self._lists is not None and settings.probes:
            self._lists.nprobe = min(settings.probes, self._lists.nlist)

    @property
    def dimension(self) -> int:
        return int(self._engine.d)

    @property
    def num_passages(self) -> int:
        return int(self._engine.ntotal)

    @property
    def breadth(self) -> dict[str, int]:
        return {} if self._lists is None else {"probes": int(self._lists.nprobe)}

    @classmethod
    def build(
        cls, corpus: Sequence[VectorSource], settings: Any, *, device: torch.device | str = "cpu"
    ) -> FaissIndex:
        """Learns from a sample of the vectors, then adds all of them. Only their form in faiss is kept in memory."""
        import faiss

        dimension = common_dimension(corpus)
        total = sum(source.num_vectors for source in corpus)
        if not total:
            raise InputError("no vectors to index")
        factory = cls._factory(settings, total)
        packed = []
        faiss_wide: Any = faiss.cvar
        faiss_wide.product_quantizer_compute_codes_bs = _ENCODED_AT_ONCE
        try:
            engine = cls._learned(settings, cls._empty(factory, dimension), corpus)
            for ids, vectors in blocks(corpus, _ADDED_AT_ONCE):
                check_finite(ids, vectors)
                refuse_overflow(float(_squared_norms(vectors).max()))
                engine.add(vectors)
                packed.append(ids)
            engine.search(vectors[:1], 1)  # some indexes can be filled but not searched
        except (RuntimeError, MemoryError) as error:
            message = f"indexer.factory={factory}, for {total:,} vectors of {dimension} numbers"
            raise ConfigError(f"{message}: faiss says {_reason(error)}") from None
        lists = faiss.try_extract_index_ivf(engine)
        if lists is not None:
            lists.nprobe = min(max(8, lists.nlist // 4), lists.nlist)
        return cls(engine, PackedIds(pack_ids(lambda: packed)), settings)

    def tune(self, questions: np.ndarray, truth: Sequence[Sequence[str]]) -> bool:
        """Chooses the fewest lists that reach TARGET_RECALL; if none does, the fewest that come near the best."""
        if self._lists is None or self._settings.probes:
            return False
        most = int(self._lists.nlist)
        reached: dict[int, float] = {}
        # about three values for each doubling
        values = sorted({min(round(2 ** (third / 3)), most) for third in range(3 * most.bit_length() + 1)})
        for probes in counted(values, "choosing indexer.probes", unit="values"):
            self._lists.nprobe = probes
            found = self.search(questions, DEPTH)[1]
            reached[probes] = recall_values(found, truth)[f"recall@{DEPTH}"]
            if reached[probes] >= TARGET_RECALL:
                return True
            quarter = max((fewer for fewer in reached if fewer <= probes / 4), default=0)
            # lists that hold too few passages are searched with others, whatever the value
            enough = quarter * self.num_passages >= 2 * DEPTH * most
            if enough and reached[quarter] >= reached[probes] * _NEARLY:
                break  # what is still missed is lost in the stored form of the vectors, not in other lists
        best = max(reached.values())
        probes = next(probes for probes, value in reached.items() if value >= best * _NEARLY)
        self._lists.nprobe = probes
        logger.warning(
            "no value of indexer.probes reaches recall@%d %g with this index; %d reaches %.3f, and higher ones at most %.3f",
            DEPTH,
            TARGET_RECALL,
            probes,
            reached[probes],
            best,
        )
        return True

    def search(self, questions: np.ndarray, k: int) -> SearchResult:
        """Returns ``k`` passages per query (Q, D), or as many as there are or a graph reaches.

        Raises:
            InputError: queries have another width, are not finite, or are so long that a float32 product
            overflows; or the index is damaged.
        """
        queries = check_queries(questions, self.dimension)
        best = RunningTopK(len(queries), min(k, self.num_passages) if k >= 1 else k)
        for start in counted(range(0, len(queries), self._asked_at_once), "searching", unit="questions"):
            tile = queries[start : start + self._asked_at_once]
            longest = float(np.sqrt(_squared_norms(tile).max()))
            refuse_overflow(longest * _LONGEST * self.dimension)
            scores, places = self._nominated(tile, best.k)
            rows, columns = np.nonzero(places >= 0)  # faiss fills up with -1
            nominated = places[rows, columns]
            if len(nominated) and int(nominated.max()) >= self.num_passages:
                found = f"the index names row {int(nominated.max())} of {self.num_passages} vectors"
                raise InputError(found, hint="remove its folder to build it again")
            scored = scores[rows, columns]
            if self._is_scored_again:
                distinct, columns = np.unique(nominated, return_inverse=True)
                stored = self._engine.reconstruct_batch(distinct)
                scored = paired_dots(tile, rows, stored, columns)
            best.add(rows + start, scored, self._ids[nominated])
        return best.result()

    def save(self, folder: Path) -> None:
        import faiss

        faiss.write_index(self._engine, str(folder / INDEX_FILE))
        with durable_file(folder / IDS_FILE, "wb") as out:
            np.save(out, self._ids.array, allow_pickle=False)

    @classmethod
    def open(cls, folder: Path, settings: Any) -> FaissIndex:
        """Opens a saved index, mapped. A file is refused if it claims to hold more than it has, or another
        shape than faiss makes of the settings."""
        import faiss

        file = folder / INDEX_FILE
        default = faiss.get_deserialization_vector_byte_limit()  # of the whole process
        faiss.set_deserialization_vector_byte_limit(max(file.stat().st_size, _LEAST_LIMIT))
        try:
            # tables are for L2 distances alone, and can be larger than the file
            flags = faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE
            engine = faiss.read_index(str(file), flags)
        except RuntimeError as error:
            raise InputError(f"faiss cannot read it ({_reason(error)})", file=file) from None
        finally:
            faiss.set_deserialization_vector_byte_limit(default)
        ids = PackedIds.mapped(folder / IDS_FILE)
        if len(ids) != engine.ntotal:
            raise InputError(f"{len(ids)} ids for {engine.ntotal} vectors", file=folder)
        factory = cls._factory(settings, len(ids))
        problem = _difference(engine, cls._empty(factory, engine.d))
        if not problem and not engine.is_trained:
            problem = "it is not trained"
        if problem:
            made = f"is not what {factory} makes of {len(ids)} vectors: {problem}"
            raise InputError(made, file=file, hint="remove the folder to build the index again")
        return cls(engine, ids, settings)

    @classmethod
    def _factory(cls, settings: Any, num_vectors: int) -> str:
        """Returns the string that faiss gets.

        Raises:
            ConfigError: faiss may crash on it.
        """
        lists = min(_MOST_LISTS, 1 << round(np.log2(2 * np.sqrt(num_vectors))), num_vectors)
        parts = (settings.factory.replace(" ", "") or f"IVF{lists},{cls._codes}").split(",")
        factory = ",".join(part for part in parts if part not in ("IDMap", "IDMap2"))  # ids are kept here
        if not _FACTORY.fullmatch(factory):
            raise ConfigError(
                f"indexer.factory={factory[:60]!r} cannot be used; expected at most 200 letters, digits and"
                " _,()+-, with HNSW in place of NSG, no norms _Nc..., and RFlat or Refine(SQ8) for refining"
            )
        for word, digits in _NUMBER.findall(factory):
            least = 2 if word == "HNSW" else 1
            most = {"IVF": num_vectors, "x": 16}.get(word, _LARGEST)
            if not least <= int(digits) <= most:
                raise ConfigError(
                    f"indexer.factory={factory}, for {num_vectors:,} vectors: {word}{digits} is out of range;"
                    f" the number must be in [{least}, {most}]"
                )
        return factory

    @classmethod
    def _empty(cls, factory: str, dimension: int) -> Any:
        import faiss

        engine = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        if engine.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ConfigError(
                f"indexer.factory={factory} ranks by L2 distance, whatever metric faiss is asked for, and"
                " passages are ranked by inner product; for a graph use HNSW32 or HNSW32,SQ8"
            )
        return engine

    @classmethod
    def _learned(cls, settings: Any, engine: Any, corpus: Sequence[VectorSource]) -> Any:
        """Returns the empty index, after it has learned from a sample."""
        import faiss

        if engine.is_trained:
            return engine
        lists = faiss.try_extract_index_ivf(engine)
        wanted = _LEAST_SAMPLE
        if lists is not None:
            wanted = max(wanted, _SAMPLED_PER_LIST * lists.nlist)
            lists.cp.min_points_per_centroid = 1  # few vectors are few lists, which faiss need not warn of
        total = sum(source.num_vectors for source in corpus)
        count = min(wanted, total)
        sample = generator_for(0, total, count).choice(total, count, replace=False)
        ids, vectors = take_rows(corpus, np.sort(sample))
        check_finite(ids, vectors)
        if count > 2 * _LEAST_SAMPLE:
            logger.info("learning the index from %s vectors", f"{count:,}")
        engine.train(np.ascontiguousarray(vectors))
        return engine

    def _nominated(self, tile: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns scores and rows (q, depth), -1 if there are fewer. If the searched lists hold fewer, more
        lists are searched."""
        import faiss

        scores, places = self._engine.search(tile, depth)
        breadth = self.breadth.get("probes", 0)
        if isinstance(self._engine, faiss.IndexIVFAdditiveQuantizerFastScan):  # its breadth is fixed
            return scores, places
        while isinstance(self._engine, faiss.IndexIVF) and breadth < self._engine.nlist:
            short = np.flatnonzero((places >= 0).sum(axis=1) < depth)
            if not len(short):
                break
            breadth = min(2 * breadth, self._engine.nlist)
            broader = faiss.SearchParametersIVF()
            broader.nprobe = breadth
            scores[short], places[short] = self._engine.search(tile[short], depth, params=broader)
        return scores, places


class SmallIndex(FaissIndex):
    """Lists of vectors with 4 bits a number."""

    _codes = "SQ4"


class FlatIndex(FaissIndex):
    """All products, in memory. faiss chooses the passages by float32 products. Where scores differ by less
    than their rounding, its choice at the end of a list may differ from that of exact search. The listed
    passages are scored and ordered exactly."""

    Settings = Settings
    _is_scored_again = True
    _asked_at_once = 256

    @classmethod
    def _factory(cls, settings: Any, num_vectors: int) -> str:
        return "Flat"


class HnswIndex(FlatIndex):
    """An index in memory that follows a graph. With several threads, the graph, and so the passages that a
    search misses, can differ between builds; a saved index does not change."""

    Settings = GraphSettings
    _links: ClassVar[int] = 512
    _codes = "Flat"

    @property
    def breadth(self) -> dict[str, int]:
        return {"ef_search": self._settings.ef_search}

    @classmethod
    def _factory(cls, settings: Any, num_vectors: int) -> str:
        return f"HNSW{settings.store_n or cls._links},{cls._codes}"

    @classmethod
    def _learned(cls, settings: Any, engine: Any, corpus: Sequence[VectorSource]) -> Any:
        engine = super()._learned(settings, engine, corpus)
        engine.hnsw.efConstruction = settings.ef_construction
        return engine

    def _nominated(self, tile: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        self._engine.hnsw.efSearch = max(self._settings.ef_search, depth)
        return super()._nominated(tile, depth)


class Hnsw32Index(HnswIndex):
    """A graph with 32 links a vector. It takes a fraction of the memory and of the build time, for about the
    same recall."""

    _links = 32


class HnswSqIndex(HnswIndex):
    """A graph over vectors with 8 bits a coordinate."""

    _links = 128
    _codes = "SQ8"


def _squared_norms(vectors: np.ndarray) -> np.ndarray:
    return np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)


def _reason(error: Exception) -> str:
    """Returns faiss's message, without the place in its code."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    return str(error).strip().splitlines()[-1].rpartition(": ")[2] or type(error).__name__


def _difference(engine: Any, fresh: Any) -> str:
    """Returns how an index, or a part of one, differs from an empty one of the same string, in properties
    that do not depend on the vectors. faiss itself compares the sizes of the arrays that it reads."""
    import faiss

    if not isinstance(engine, type(fresh)):
        return f"it is {type(engine).__name__}"
    for name in _DECISIVE:
        if getattr(engine, name, None) != getattr(fresh, name, None):
            return f"{name} is {getattr(engine, name, None)}"
    for name in ("sq", "pq", "rabitq", "storage"):
        part: Any = getattr(engine, name, None)
        expected: Any = getattr(fresh, name, None)
        if name == "storage" and part is not None:
            part = faiss.downcast_index(part)
            expected = faiss.downcast_index(expected)
        if expected is not None and (problem := _difference(part, expected)):
            return problem
    return ""
