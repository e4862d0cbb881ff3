"""Settings of the indexes, one class for each. The configuration is composed of them, so every key is
declared once."""

from __future__ import annotations

from dataclasses import dataclass

from dpr.core.errors import ConfigError
from dpr.core.settings import IDENTITY, NO_EFFECT, Settings, setting

DEFAULT_WEIGHT = 0.4
"""Share of the dense side in a hybrid where none was chosen. Among all ways to fuse, it loses least with the
encoder and the collection that suit it worst (table: benchmarks/results/hybrid_weight.md, made by
benchmarks/hybrid_weight.py)."""


@dataclass
class ApproximateSettings(Settings):
    """Settings of indexes that may miss passages."""

    least_recall: float = setting(0.5, least=0, most=1, on_resume=NO_EFFECT)
    """Recall@100 against exact search below which a new approximate index is refused; recall@10 if there are
    at most 200 passages. 0 = none is refused."""


@dataclass
class GraphSettings(ApproximateSettings):
    """Settings of faiss's HNSW graphs; defaults are DPR's."""

    store_n: int = setting(0, least=0, most=4096, on_resume=IDENTITY)
    """Links per vector of an HNSW graph; 0 = 512 for hnsw, 128 for hnsw_sq, 32 for hnsw32."""
    ef_search: int = setting(128, least=1, most=1_000_000, on_resume=NO_EFFECT)
    """Breadth of a search in an HNSW graph; n_docs if that is larger. A saved index is searched with the
    current value."""
    ef_construction: int = setting(200, least=1, most=1_000_000, on_resume=IDENTITY)
    """Breadth of the search while an HNSW graph is built."""

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.store_n == 1:
            raise ConfigError(
                f"{prefix}store_n=1: a graph of one link per vector cannot be built; set at least 2, or 0"
            )


@dataclass
class FactorySettings(ApproximateSettings):
    """Settings of an index that faiss makes from a string."""

    factory: str = setting("", on_resume=IDENTITY)
    """Any string of faiss's index_factory, e.g. "IVF4096,PQ64" or "OPQ64,IVF65536,PQ64" (docs/search.md);
    absent = "IVF<lists>,SQ8", for small SQ4. The number of lists is then the power of two next to twice the
    root of the number of vectors, at most 65,536."""
    probes: int = setting(0, unit="lists", least=0, on_resume=NO_EFFECT)
    """Lists searched for a question; 0 = the fewest that reached a recall@100 of 0.95 when the index was
    built. If it was built without questions, a quarter of the lists, at least 8."""


@dataclass
class Bm25Settings(Settings):
    """Settings of BM25."""

    k1: float = setting(0.9, least=0, on_resume=IDENTITY)
    """BM25's k1, the saturation of term frequency: with a lower value, repetitions of a word count less."""
    b: float = setting(0.4, least=0, most=1, on_resume=IDENTITY)
    """BM25's b, the strength of length normalisation, 0 to 1."""


@dataclass(frozen=True, slots=True)
class IndexKind:
    """Class and settings of a built-in index."""

    path: str
    settings: type[Settings]


KINDS = {
    "exact": IndexKind("dpr.indexer.exact:ExactIndex", Settings),
    "flat": IndexKind("dpr.indexer.faiss_index:FlatIndex", Settings),
    "hnsw": IndexKind("dpr.indexer.faiss_index:HnswIndex", GraphSettings),
    "hnsw_sq": IndexKind("dpr.indexer.faiss_index:HnswSqIndex", GraphSettings),
    "hnsw32": IndexKind("dpr.indexer.faiss_index:Hnsw32Index", GraphSettings),
    "faiss": IndexKind("dpr.indexer.faiss_index:FaissIndex", FactorySettings),
    "ivf": IndexKind("dpr.indexer.faiss_index:FaissIndex", FactorySettings),
    "small": IndexKind("dpr.indexer.faiss_index:SmallIndex", FactorySettings),
    "bm25": IndexKind("dpr.indexer.bm25:Bm25Index", Bm25Settings),
}
"""Built-in indexes by kind; any other kind is an import path, ``module:Class``."""


def require_known(kind: str) -> None:
    """Raises ConfigError for a kind that is neither built in nor an import path."""
    if kind not in KINDS and ":" not in kind:
        raise ConfigError(
            f"indexer={kind} is not known; choose one of {', '.join(KINDS)}, or a user-defined"
            " indexer.kind=module:Class"
        )
