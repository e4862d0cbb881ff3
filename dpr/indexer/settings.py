"""Settings of the indexes, one class for each; the configuration is composed of them, so every key is declared once."""

from __future__ import annotations

from dataclasses import dataclass

from dpr.core.settings import IDENTITY, NO_EFFECT, WARNED, Settings, setting

KINDS = {
    "exact": "dpr.indexer.exact:ExactIndex",
    "flat": "dpr.indexer.faiss_index:FlatIndex",
    "hnsw": "dpr.indexer.faiss_index:HnswIndex",
    "hnsw_sq": "dpr.indexer.faiss_index:HnswSqIndex",
    "bm25": "dpr.indexer.bm25:Bm25Index",
}
"""Built-in indexes; any other kind is an import path, ``module:Class``."""


@dataclass
class ExactSettings(Settings):
    """Of exact search."""

    block_rows: int = setting(65536, least=1, on_resume=NO_EFFECT)
    """Passages per matrix product of the exact search."""


@dataclass
class FlatSettings(Settings):
    """Of faiss indexes."""

    buffer_size: int = setting(50000, least=1, on_resume=NO_EFFECT)
    """Vectors added to a faiss index at a time."""


@dataclass
class GraphSettings(FlatSettings):
    """Of faiss's HNSW graphs; defaults are DPR's."""

    store_n: int = setting(0, least=0, on_resume=WARNED)
    """Links per vector of an HNSW graph; 0 = 512 for hnsw, 128 for hnsw_sq."""
    ef_search: int = setting(128, least=1, on_resume=NO_EFFECT)
    """Breadth of a search in an HNSW graph; n_docs where that is larger. A saved index is searched with the present value."""
    ef_construction: int = setting(200, least=1, on_resume=WARNED)
    """Breadth of the search while an HNSW graph is built."""


@dataclass
class Bm25Settings(Settings):
    """Of BM25."""

    k1: float = setting(0.9, least=0, on_resume=IDENTITY)
    """BM25: how soon more occurrences of a word stop counting."""
    b: float = setting(0.4, least=0, most=1, on_resume=IDENTITY)
    """BM25: how much long passages are marked down, 0 to 1."""
