"""Search by faiss: ``flat`` (exact, in memory), ``hnsw`` (approximate, a graph) and ``hnsw_sq`` (the same over 8-bit vectors).

HNSW finds the smallest L2 distance, not the largest dot product. As in DPR, phi is the largest squared norm of all passage vectors; a
passage gets the extra coordinate sqrt(phi - |x|^2), a query 0. Then all passages are equally long and both orders agree. Scores returned
are dot products of the query with the stored vector (for ``hnsw_sq`` the one that 8 bits could hold), not distances.

Building reads the vectors as a stream: once for phi and the ranges of the 8-bit quantiser, once to add them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import ConfigError, InputError
from dpr.formats.durable import durable_folder, read_manifest, verify_folder
from dpr.formats.shard_checks import map_ids
from dpr.indexer.ranking import RunningTopK, SearchResult
from dpr.indexer.vectors import VectorSource, blocks, check_finite, check_queries, paired_dots

KINDS = ("flat", "hnsw", "hnsw_sq")
_INDEX_FILE, _IDS_FILE = "index.faiss", "ids.npy"


@dataclass(frozen=True, slots=True)
class FaissSettings:
    """Defaults are DPR's. ``store_n``: links per vector, 0 = 512 for hnsw and 128 for hnsw_sq. ``ef_*``: breadth of a search."""

    kind: str = "flat"
    store_n: int = 0
    ef_search: int = 128
    ef_construction: int = 200
    buffer_size: int = 50_000
    """Vectors added at a time."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"indexer={self.kind} is not a faiss index; choose one of {', '.join(KINDS)}")

    @property
    def links(self) -> int:
        return self.store_n or (512 if self.kind == "hnsw" else 128)


class FaissIndex:
    """An index in memory. Make one with ``build`` or ``load``."""

    def __init__(self, engine: Any, ids: np.ndarray, settings: FaissSettings, source: Mapping[str, Any]) -> None:
        self._engine, self._ids = engine, ids
        self.settings, self.source = settings, dict(source)
        self._is_augmented = settings.kind != "flat"
        self.dimension = int(engine.d) - self._is_augmented
        self.num_vectors = int(engine.ntotal)

    @classmethod
    def build(cls, sources: Sequence[VectorSource], settings: FaissSettings, *, source: Mapping[str, Any] | None = None) -> FaissIndex:
        """Indexes all vectors of ``sources``; ``source`` says what they are (model, corpus) and is kept with the index.

        With several threads the graph, and so what an approximate search misses, can differ between builds; a saved index does not change.
        """
        dimensions = {item.dimension for item in sources}
        if len(dimensions) != 1 or not sum(item.num_vectors for item in sources):
            raise InputError(
                f"vectors of dimensions {sorted(dimensions)}" if dimensions else "no vectors to index", expected="one dimension"
            )
        dimension = dimensions.pop()
        phi = 0.0
        if settings.kind != "flat":
            phi, low, high = _ranges(sources, settings.buffer_size, dimension)
        engine = _new_engine(settings, dimension)
        if settings.kind == "hnsw_sq":
            # The quantiser learns the range of each coordinate and nothing else, so the two corners stand for all vectors.
            engine.train(np.stack([low, high]))
        ids = []
        for block_ids, vectors in blocks(sources, settings.buffer_size):
            check_finite(block_ids, vectors)
            engine.add(vectors if settings.kind == "flat" else _augmented(vectors, phi))
            ids.append(block_ids)
        return cls(engine, np.concatenate(ids), settings, source or {})

    def search(self, queries: np.ndarray, k: int, *, query_rows: int = 256) -> SearchResult:
        """Up to ``k`` passages per query (Q, D), best first by (score descending, id ascending). ``flat`` finds the true ones."""
        queries = check_queries(queries, self.dimension)
        best = RunningTopK(len(queries), min(k, self.num_vectors) if k >= 1 else k)
        if self._is_augmented:
            self._engine.hnsw.efSearch = max(self.settings.ef_search, best.k)
        for start in range(0, len(queries), query_rows):
            tile = queries[start : start + query_rows]
            asked = np.hstack([tile, np.zeros((len(tile), 1), dtype=np.float32)]) if self._is_augmented else tile
            _, found = self._engine.search(asked, best.k)
            rows, places = np.nonzero(found >= 0)
            positions = found[rows, places]
            distinct, columns = np.unique(positions, return_inverse=True)
            stored = self._engine.reconstruct_batch(distinct)[:, : self.dimension]
            best.add(rows + start, paired_dots(tile, rows, stored, columns), self._ids[positions])
        return best.result()

    def save(self, folder: Path, *, overwrite: bool = False) -> None:
        """Writes the index as a folder with a manifest."""
        import faiss

        metadata = {"kind": "faiss", "num_vectors": self.num_vectors, "settings": asdict(self.settings), "source": self.source}
        with durable_folder(Path(folder), overwrite=overwrite, metadata=metadata) as temporary:
            faiss.write_index(self._engine, str(temporary / _INDEX_FILE))
            np.save(temporary / _IDS_FILE, self._ids, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, *, source: Mapping[str, Any] | None = None, kind: str | None = None) -> FaissIndex:
        """Opens a saved index. Checksums are compared before faiss reads a byte: faiss itself loads most damaged files without a word.

        Raises:
            InputError: damaged, of another kind, or made from other vectors than ``source`` says (only keys given there are compared).
        """
        import faiss

        folder = Path(folder)
        metadata = read_manifest(folder)["metadata"]
        if metadata.get("kind") != "faiss":
            raise InputError(f"holds an index of kind {metadata.get('kind')!r}", file=folder, expected="faiss")
        settings = FaissSettings(**metadata["settings"])
        if kind is not None and settings.kind != kind:
            raise InputError(f"holds a {settings.kind} index", file=folder, expected=kind, hint=f"set indexer={settings.kind}")
        for key, value in (source or {}).items():
            if metadata["source"].get(key) != value:
                found = f"was built from other vectors ({key} {metadata['source'].get(key)!r})"
                raise InputError(found, file=folder, expected=repr(value), hint="remove it to build it again, or set another index_path")
        if problems := verify_folder(folder):
            raise InputError("; ".join(problems), file=folder, hint="remove the folder to build the index again")
        faiss.set_deserialization_vector_byte_limit((folder / _INDEX_FILE).stat().st_size)
        try:
            engine = faiss.read_index(str(folder / _INDEX_FILE))
        except RuntimeError as error:
            raise InputError(f"faiss cannot read it ({str(error).splitlines()[-1]})", file=folder / _INDEX_FILE) from None
        ids = map_ids(folder / _IDS_FILE)
        if len(ids) != engine.ntotal:
            raise InputError(f"{len(ids)} ids for {engine.ntotal} vectors", file=folder)
        return cls(engine, ids, settings, metadata["source"])


def _new_engine(settings: FaissSettings, dimension: int) -> Any:
    import faiss

    if settings.kind == "flat":
        return faiss.IndexFlatIP(dimension)
    kinds: dict[str, Any] = {"hnsw": (faiss.IndexHNSWFlat, ()), "hnsw_sq": (faiss.IndexHNSWSQ, (faiss.ScalarQuantizer.QT_8bit,))}
    make, storage = kinds[settings.kind]
    engine = make(dimension + 1, *storage, settings.links)
    engine.hnsw.efSearch = settings.ef_search
    engine.hnsw.efConstruction = settings.ef_construction
    return engine


def _squared_norms(vectors: np.ndarray) -> np.ndarray:
    return np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)


def _ranges(sources: Sequence[VectorSource], buffer_size: int, dimension: int) -> tuple[float, np.ndarray, np.ndarray]:
    """phi, and the least and largest value of each augmented coordinate."""
    least_norm, phi = np.inf, 0.0
    low, high = np.full(dimension, np.inf), np.full(dimension, -np.inf)
    for ids, vectors in blocks(sources, buffer_size):
        check_finite(ids, vectors)
        norms = _squared_norms(vectors)
        least_norm, phi = min(least_norm, float(norms.min())), max(phi, float(norms.max()))
        low, high = np.minimum(low, vectors.min(axis=0)), np.maximum(high, vectors.max(axis=0))
    low, high = np.append(low, 0.0), np.append(high, np.sqrt(phi - least_norm))
    return phi, low.astype(np.float32), high.astype(np.float32)


def _augmented(vectors: np.ndarray, phi: float) -> np.ndarray:
    extra = np.sqrt(np.maximum(phi - _squared_norms(vectors), 0.0))
    return np.hstack([vectors, extra[:, None].astype(np.float32)])
