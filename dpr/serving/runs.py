"""Run folders -> the indexes a service answers from: each way of searching one is an index of its own, ``run`` or ``run:mode``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.hashes import text_sha256
from dpr.formats.text_input import matching_paths
from dpr.indexer.settings import KINDS
from dpr.jobs.search import StoredCorpus
from dpr.retrieval.fields import PassageFields
from dpr.retrieval.retrievers import DenseRetriever, HybridRetriever, LexicalRetriever
from dpr.retrieval.search_folder import SearchSettings
from dpr.retriever import Retriever
from dpr.serving.settings import ServeSettings
from dpr.storage.durable import MANIFEST, describe_file


@dataclass(frozen=True)
class ServedIndex:
    """One way of searching one run."""

    name: str
    run: str
    mode: str
    retriever: Retriever
    facts: Mapping[str, Any]
    """What /info says."""
    fields: PassageFields
    """What its passages can be filtered by."""


def open_runs(folders: Mapping[str, Path], settings: ServeSettings) -> Iterator[ServedIndex]:
    """The indexes of each run, its own way of searching first.

    Raises:
        ConfigError, InputError: a folder cannot be searched, or its files are damaged or do not belong together.
    """
    for name, folder in folders.items():
        retriever = Retriever.open(folder, device=settings.device)
        corpus = retriever.corpus
        assert isinstance(corpus, StoredCorpus)
        wanted = [mode for mode in retriever.modes if mode == retriever.mode or mode in settings.mode_names()]
        for mode in wanted:
            retriever.side(mode)
        if (file := corpus.passages.reread) is not None:
            hint = "as the cache cannot be written; set DPR_CACHE to a folder that can"
            raise ConfigError(f"{file} would be read whole for each answer, {hint}")
        fields = corpus.fields(settings.metadata_kinds())
        for mode in sorted(wanted, key=lambda mode: mode != retriever.mode):
            is_own = mode == retriever.mode
            index_name = name if is_own else f"{name}:{mode}"
            facts = {"name": index_name, "run": name, "mode": mode, "default": is_own, "choices": fields.choices()}
            yield ServedIndex(index_name, name, mode, retriever, facts | _facts(mode, corpus.settings, retriever), fields)


def _facts(mode: str, stored: SearchSettings, retriever: Retriever) -> dict[str, Any]:
    side = retriever.side(mode)
    dense = side.dense if isinstance(side, HybridRetriever) else side
    kind = "bm25" if mode == "bm25" else str(stored.indexer.get("kind"))
    kind = "exact" if kind == "bm25" and mode != "bm25" else kind  # beside a run of BM25
    model = dense.model.fingerprint if isinstance(dense, DenseRetriever) else None
    index = dense.index if isinstance(dense, DenseRetriever | LexicalRetriever) else None
    return {
        "kind": kind if mode != "hybrid" else f"{kind} + bm25",
        "exact": kind in KINDS and KINDS[kind].is_exact,
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
