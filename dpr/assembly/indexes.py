"""Indexer settings -> indexes and retrievers; saved indexes are used again when they are of the same vectors or texts."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dpr.config.retrieval import FAISS_KINDS, IndexerConfig, RetrievalConfig
from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.embedding.source import PassageSource
from dpr.formats.durable import MANIFEST, describe_file
from dpr.formats.original.vectors import PickledVectors
from dpr.formats.vector_shards import VectorShard, open_shards
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.exact import ExactIndex
from dpr.indexer.faiss_index import FaissIndex, FaissSettings
from dpr.indexer.fusion import DEFAULT_WEIGHT
from dpr.indexer.vectors import PrefixedSource, VectorSource
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.passages import lexical_texts
from dpr.retrieval.retrievers import (
    DenseRetriever,
    Fusion,
    HybridRetriever,
    LexicalRetriever,
    QuestionForm,
    Retriever,
    VectorIndex,
    check_vectors_are_of,
)

logger = get_logger(__name__)


def build_retriever(
    config: RetrievalConfig, sources: Sequence[PassageSource], *, form: QuestionForm | None = None, device: torch.device | str = "cpu"
) -> Retriever:
    """The retriever that the settings describe: dense, BM25 or both."""
    if config.indexer.kind == "bm25":
        return LexicalRetriever(open_bm25(sources, config.indexer, config.bm25_index_path))
    model = BiEncoder.load(str(config.model_file), device=device, pretrained_model_cfg=config.encoder.pretrained_model_cfg)
    dense = DenseRetriever(model, open_vector_index(config, model, sources, device), form=form, batch_size=config.batch_size)
    if config.hybrid == "none":
        return dense
    lexical = LexicalRetriever(open_bm25(sources, config.indexer, config.bm25_index_path))
    weight = DEFAULT_WEIGHT if config.hybrid_weight is None else config.hybrid_weight
    fusion = Fusion(config.hybrid, weight, config.hybrid_normalisation, config.hybrid_depth)
    return HybridRetriever(dense, lexical, fusion)


def open_vector_index(
    config: RetrievalConfig, model: BiEncoder, sources: Sequence[PassageSource], device: torch.device | str
) -> VectorIndex:
    """Exact search over the shards, or a faiss index: loaded from ``index_path`` where that is there, else built, and saved there.

    Raises:
        InputError: the vectors are of another model, or the saved index is of other vectors.
    """
    patterns = config.vector_patterns()
    shards = _open_vectors(patterns, model, f"model_file={config.model_file}")
    vectors = _with_prefixes(shards, patterns, sources)
    indexer = config.indexer
    if indexer.kind not in FAISS_KINDS:
        return ExactIndex(vectors, device=device, block_rows=indexer.block_rows)
    identity = {"model_fingerprint": model.fingerprint} | ({"vectors": _digest(shards, vectors)} if shards else {})
    folder = Path(config.index_path) if config.index_path else None
    if folder is not None and _is_filled(folder):
        return FaissIndex.load(folder, source=identity, kind=indexer.kind)
    if not shards:
        raise InputError("there is no index", file=folder, hint="set encoded_ctx_files=[<vectors>] to build it")
    settings = FaissSettings(
        indexer.kind,
        store_n=indexer.store_n,
        ef_search=indexer.ef_search,
        ef_construction=indexer.ef_construction,
        buffer_size=indexer.buffer_size,
    )
    start = time.monotonic()
    index = FaissIndex.build(vectors, settings, source=identity)
    logger.info("%s index of %d vectors built in %.1f s", indexer.kind, index.num_vectors, time.monotonic() - start)
    if folder is not None:
        index.save(folder)
        logger.info("index saved to %s", folder)
    return index


def open_bm25(sources: Sequence[PassageSource], settings: IndexerConfig, path: str | None) -> Bm25Index:
    """A BM25 index of the corpus: loaded from ``path`` where that is there, else built, and saved there."""
    identity = {
        # Words are searched without the prefix of what is embedded.
        "corpus": _hash(*(json.dumps(replace(source, passage_prefix="").identity(), sort_keys=True) for source in sources)),
        "k1": str(settings.k1),
        "b": str(settings.b),
    }
    folder = Path(path) if path else None
    if folder is not None and _is_filled(folder):
        return Bm25Index.load(folder, metadata=identity)
    start = time.monotonic()
    index = Bm25Index.build(*lexical_texts(sources), k1=settings.k1, b=settings.b)
    logger.info("BM25 index of %d passages built in %.1f s", index.num_passages, time.monotonic() - start)
    if folder is not None:
        index.save(folder, metadata=identity)
    return index


def _open_vectors(patterns: Sequence[str], model: BiEncoder, model_file: str) -> list[VectorShard] | list[PickledVectors]:
    """Shards, or the original's embedding files where all that is named are files."""
    named = [Path(pattern).expanduser() for pattern in patterns]
    found = [[item] if item.exists() else [Path(match) for match in sorted(glob.glob(str(item)))] for item in named]
    paths = list(dict.fromkeys(path for matches in found for path in matches))
    if not all(found) or not paths or not all(path.is_file() for path in paths):
        shards = open_shards(patterns) if patterns else []
        check_vectors_are_of(model, shards, model_file=model_file)
        return shards
    files = [PickledVectors(path) for path in paths]
    for file in files:
        if file.dimension != model.dimension:
            raise InputError(f"vectors of {file.dimension} dimensions", file=file.path, expected=f"the {model.dimension} of {model_file}")
    ids = np.concatenate([file.ids for file in files])
    if len(np.unique(ids)) != len(ids):
        raise InputError("a passage id occurs twice in these vectors", file=", ".join(str(file.path) for file in files[:4]))
    logger.warning("embedding files do not say which model made them; %d vectors are taken to be of %s", len(ids), model_file)
    return files


def _with_prefixes(
    shards: Sequence[VectorShard | PickledVectors], patterns: Sequence[str], sources: Sequence[PassageSource]
) -> list[VectorSource]:
    """Shards whose ids get the prefix of their passage source; DPR pairs the patterns with the sources in order."""
    if not any(source.id_prefix for source in sources):
        return list(shards)
    if len(sources) not in (1, len(patterns)):
        found = f"ctx_datatsets has {len(sources)} entries, encoded_ctx_files {len(patterns)}"
        raise ConfigError(f"{found}; where an id_prefix is used, give one for each, in the same order")
    prefixed: list[VectorSource] = []
    for shard in shards:
        place = next((n for n, pattern in enumerate(patterns) if fnmatch.fnmatch(str(shard.path), str(Path(pattern).expanduser()))), 0)
        prefix = sources[min(place, len(sources) - 1)].id_prefix
        prefixed.append(PrefixedSource(shard, prefix) if prefix else shard)
    return prefixed


def _digest(shards: Sequence[VectorShard | PickledVectors], vectors: Sequence[VectorSource]) -> str:
    """Identity of the vectors and of the ids they are given."""
    prefixes = [item.prefix if isinstance(item, PrefixedSource) else "" for item in vectors]
    digests = [shard.digest if isinstance(shard, PickledVectors) else describe_file(shard.path / MANIFEST)["sha256"] for shard in shards]
    return _hash(*(f"{digest} {prefix}" for digest, prefix in zip(digests, prefixes, strict=True)))


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _is_filled(folder: Path) -> bool:
    return folder.is_file() or (folder.is_dir() and any(folder.iterdir()))
