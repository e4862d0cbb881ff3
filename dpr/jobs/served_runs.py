"""Run folders -> the indexes a service answers from: each way of searching one is an index of its own, ``run`` or ``run:mode``."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.hashes import text_sha256
from dpr.core.logs import get_logger
from dpr.formats.text_input import matching_paths
from dpr.indexer.filtered import among, can_filter
from dpr.indexer.registry import Index
from dpr.indexer.settings import KINDS
from dpr.jobs.indexes import index_choice, open_vector_index
from dpr.jobs.search import Searcher, open_searcher, retrieval_config, search_settings
from dpr.retrieval.fields import PassageFields
from dpr.retrieval.retrievers import DenseRetriever, HybridRetriever, LexicalRetriever, Retriever
from dpr.retrieval.search_folder import SearchSettings
from dpr.serving.settings import MODES, ServeSettings
from dpr.storage.durable import MANIFEST, describe_file

logger = get_logger(__name__)
_APPROXIMATE = KINDS.keys() - {"exact", "flat", "bm25"}


@dataclass(frozen=True)
class ServedIndex:
    """One way of searching one run."""

    name: str
    run: str
    mode: str
    retriever: Retriever
    searcher: Searcher
    """Of the run; its retriever is that of the widest mode."""
    facts: Mapping[str, Any]
    """What /info says."""
    fields: PassageFields
    """What its passages can be filtered by."""
    _opened: dict[str, Index] = field(default_factory=dict)

    @property
    def can_filter(self) -> bool:
        """Whether the vectors are there that a filter needs."""
        dense = self.retriever.dense if isinstance(self.retriever, HybridRetriever) else self.retriever
        return not isinstance(dense, DenseRetriever) or can_filter(dense.index) or bool(self.searcher.settings.encoded_ctx_files)

    def among(self, ids: np.ndarray) -> Retriever:
        """A retriever of the passages with these ids (n,), ascending and distinct, that takes every product; where ``can_filter``."""
        return self._narrowed(self.retriever, ids)

    def _narrowed(self, retriever: Retriever, ids: np.ndarray) -> Retriever:
        if isinstance(retriever, HybridRetriever):
            sides = self._narrowed(retriever.dense, ids), self._narrowed(retriever.lexical, ids)
            return HybridRetriever(*sides, retriever.fusion)
        if isinstance(retriever, LexicalRetriever):
            return LexicalRetriever(among(retriever.index, ids))
        assert isinstance(retriever, DenseRetriever)
        narrowed = copy.copy(retriever)
        narrowed.index = among(retriever.index if can_filter(retriever.index) else self._exact(retriever), ids)
        return narrowed

    def _exact(self, dense: DenseRetriever) -> Index:
        """Exact search beside an approximate index, opened when it is first needed."""
        stored = self.searcher.settings
        if "index" not in self._opened:
            exact = replace(stored, indexer={"kind": "exact"}, index_path=None, hybrid="none", hybrid_weight=None)
            config = retrieval_config(exact)
            device = next(dense.model.parameters()).device
            self._opened["index"] = open_vector_index(config, index_choice(config.indexer), dense.model, stored.passages, device)
        return self._opened["index"]

    @property
    def file(self) -> str | None:
        """Name of the corpus, where it is one file."""
        files = [source.file.name for source in self.searcher.settings.passages]
        return files[0] if len(files) == 1 else None


def open_runs(folders: Mapping[str, Path], settings: ServeSettings) -> Iterator[ServedIndex]:
    """The indexes of each run, its own way of searching first.

    Raises:
        ConfigError, InputError: a folder cannot be searched, or its files are damaged or do not belong together.
    """
    for name, folder in folders.items():
        stored = search_settings(folder)
        own = _mode(stored)
        wanted = [mode for mode in MODES if mode == own or (mode in settings.mode_names() and mode in _possible(stored))]
        needs_both = len(wanted) > 1
        searcher = open_searcher(_as_hybrid(stored) if needs_both else stored, device=settings.device)
        if (file := searcher.passages.reread) is not None:
            hint = "as the cache cannot be written; set DPR_CACHE to a folder that can"
            raise ConfigError(f"{file} would be read whole for each answer, {hint}")
        fields = PassageFields.read(stored.passages, settings.metadata_kinds())
        for mode in sorted(wanted, key=lambda mode: mode != own):
            retriever = _side(searcher.retriever, mode)
            facts = _facts(mode, stored, retriever)
            index_name = name if mode == own else f"{name}:{mode}"
            facts = {"name": index_name, "run": name, "mode": mode, "default": mode == own, "choices": fields.choices()} | facts
            yield ServedIndex(index_name, name, mode, retriever, searcher, facts, fields)


def _mode(stored: SearchSettings) -> str:
    if stored.indexer.get("kind") == "bm25":
        return "bm25"
    return "dense" if stored.hybrid == "none" else "hybrid"


def _possible(stored: SearchSettings) -> list[str]:
    has_dense = bool(stored.model_file and (stored.encoded_ctx_files or stored.index_path))
    return list(MODES) if has_dense else ["bm25"]


def _as_hybrid(stored: SearchSettings) -> SearchSettings:
    if stored.indexer.get("kind") == "bm25":
        if not stored.encoded_ctx_files:
            raise ConfigError("a run of BM25 names an index of vectors, but not the vectors; use modes=bm25")
        stored = replace(stored, indexer=stored.indexer | {"kind": "exact"}, bm25_index_path=stored.bm25_index_path or stored.index_path)
        stored = replace(stored, index_path=None)
    return stored if stored.hybrid != "none" else replace(stored, hybrid="linear")


def _side(retriever: Retriever, mode: str) -> Retriever:
    if not isinstance(retriever, HybridRetriever) or mode == "hybrid":
        return retriever
    return retriever.dense if mode == "dense" else retriever.lexical


def _facts(mode: str, stored: SearchSettings, retriever: Retriever) -> dict[str, Any]:
    kind = "bm25" if mode == "bm25" else str(stored.indexer.get("kind"))
    dense = retriever.dense if isinstance(retriever, HybridRetriever) else retriever
    model = dense.model.fingerprint if isinstance(dense, DenseRetriever) else None
    index = dense.index if isinstance(dense, DenseRetriever | LexicalRetriever) else None
    return {
        "kind": kind if mode != "hybrid" else f"{kind} + bm25",
        "exact": kind not in _APPROXIMATE and kind in KINDS,
        "passages": None if index is None else index.num_passages,
        "recall": index.recall.as_dict() if index is not None and index.recall else None,
        "model_fingerprint": model,
        "fingerprint": _fingerprint(mode, stored, model),
    }


def _fingerprint(mode: str, stored: SearchSettings, model: str | None) -> str:
    """Identity of what decides an answer: model, vectors, passages, and the settings of the search."""
    parts: dict[str, Any] = {"mode": mode, "passages": [source.identity() for source in stored.passages], "form": asdict(stored.form)}
    parts["indexer"] = {name: value for name, value in stored.indexer.items() if mode != "bm25" or name in ("k1", "b")}
    if mode != "bm25":
        paths = [path for pattern in stored.encoded_ctx_files for path in matching_paths(pattern)]
        found = [path / MANIFEST if (path / MANIFEST).is_file() else path for path in [*paths, *map(Path, [stored.index_path or ""])]]
        parts |= {"model": model, "dimensions": stored.dimensions, "text": asdict(stored.text)}
        parts["vectors"] = [describe_file(path)["sha256"] for path in found if path.is_file()]
    if mode == "hybrid":
        parts["fusion"] = [stored.hybrid, stored.hybrid_weight, stored.hybrid_normalisation, stored.hybrid_depth]
    return text_sha256(json.dumps(parts, sort_keys=True))[:32]
