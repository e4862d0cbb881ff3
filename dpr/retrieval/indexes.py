"""Indexes and retrievers from the settings of an index. A saved index is reused if it was made of the same
vectors or texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.records import text_sha256
from dpr.embedding.source import PassageSource, corpora_of, require_corpora
from dpr.formats.original.vectors import PickledVectors
from dpr.formats.text_input import matching_paths
from dpr.formats.vector_shards import VectorShard, open_shards
from dpr.indexer.registry import Index, IndexChoice, held_back
from dpr.indexer.saved import IndexStore
from dpr.indexer.settings import DEFAULT_WEIGHT, KINDS
from dpr.indexer.vectors import PrefixedSource, VectorSource
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.passages import lexical_texts
from dpr.retrieval.question_form import QuestionForm
from dpr.retrieval.settings import IndexerConfig, RetrievalConfig
from dpr.retrieval.sides import (
    AnyRetriever,
    DenseRetriever,
    Fusion,
    HybridRetriever,
    LexicalRetriever,
    check_vectors_are_of,
    encode_questions,
)
from dpr.storage.durable import MANIFEST, describe_file, read_manifest

logger = get_logger(__name__)


def build_retriever(
    config: RetrievalConfig,
    sources: Sequence[PassageSource],
    *,
    form: QuestionForm | None = None,
    device: torch.device | str = "cpu",
    questions: Sequence[str] = (),
) -> AnyRetriever:
    """Builds the retriever that the settings describe: dense, over words, or both. The recall of a new index
    is measured on ``questions``."""
    choice = index_choice(config.indexer)
    if choice.index_class.reads == "texts":
        if config.hybrid != "none":
            raise ConfigError(
                f"hybrid={config.hybrid} adds BM25 to a dense indexer; indexer={choice.kind} searches texts"
                " itself"
            )
        return LexicalRetriever(open_text_index(choice, sources, config.bm25_index_path or config.index_path))
    dense = open_dense(config, sources, form=form, device=device, questions=questions)
    if config.hybrid == "none":
        return dense
    words = index_choice(replace(config.indexer, kind="bm25"))
    lexical = LexicalRetriever(open_text_index(words, sources, config.bm25_index_path))
    weight = DEFAULT_WEIGHT if config.hybrid_weight is None else config.hybrid_weight
    return HybridRetriever(dense, lexical, Fusion(weight, config.hybrid_depth))


def open_dense(
    config: RetrievalConfig,
    sources: Sequence[PassageSource],
    *,
    form: QuestionForm | None = None,
    device: torch.device | str = "cpu",
    questions: Sequence[str] = (),
) -> DenseRetriever:
    """Opens the model of the settings and an index of its vectors."""
    if not config.model_file:
        kind = config.indexer.kind
        raise ConfigError(
            f"model_file is not set; indexer={kind} searches vectors, e.g. model_file=runs/first"
        )
    model = BiEncoder.load(str(config.model_file), device=device, **config.encoder.arguments())
    agreed = (form or QuestionForm()).agreed(model.tensorizer.text)
    some = [questions[row] for row in held_back(len(questions))]

    def queries() -> np.ndarray:
        return encode_questions(model, some, agreed, batch_size=config.batch_size)

    index = open_vector_index(config, model, sources, device, questions=queries if some else None)
    return DenseRetriever(model, index, form=form, batch_size=config.batch_size)


def index_choice(config: IndexerConfig) -> IndexChoice:
    """Returns the index that the settings name. The settings of a built-in kind stand beside ``kind``, those
    of a user-defined class in ``options``."""
    if config.kind not in KINDS:
        return IndexChoice.of(config.kind, config.options, key="indexer.options.")
    names = [item.name for item in fields(KINDS[config.kind].settings)]
    return IndexChoice.of(config.kind, {name: getattr(config, name) for name in names}, key="indexer.")


def open_vector_index(
    config: RetrievalConfig,
    model: BiEncoder,
    sources: Sequence[PassageSource],
    device: torch.device | str,
    *,
    questions: Callable[[], np.ndarray] | None = None,
) -> Index:
    """Opens the index of the vectors from ``index_path`` if it exists; else builds it and saves it there.

    Raises:
        InputError: the vectors are of another model, the saved index is of other vectors, or either is of
        other passages than ``sources``.
    """
    choice = index_choice(config.indexer)
    patterns = config.vector_patterns()
    shards = _open_vectors(patterns, model, f"model_file={config.model_file}")
    vectors = _with_prefixes(shards, patterns, sources)
    corpora = corpora_of(shard.metadata for shard in shards if isinstance(shard, VectorShard))
    require_corpora(corpora, sources, file=", ".join(patterns))
    folder = Path(config.index_path) if config.index_path else None
    identity = {"model_fingerprint": model.fingerprint}
    if shards and folder is not None:
        parts = []
        opened: Sequence[VectorShard | PickledVectors] = shards
        for shard, item in zip(opened, vectors, strict=True):
            if isinstance(shard, PickledVectors):
                digest = shard.digest
            else:
                digest = describe_file(shard.path / MANIFEST)["sha256"]
            parts.append(f"{digest} {item.prefix if isinstance(item, PrefixedSource) else ''}")
        identity["vectors"] = _hash(*parts)
    made = (lambda: vectors) if shards else None
    index = IndexStore(choice, folder, identity, corpora, device).load_or_build(made, questions=questions)
    if folder is not None and not shards:
        stated = read_manifest(folder)["metadata"].get("corpora")
        require_corpora(corpora_of(stated if isinstance(stated, list) else ()), sources, file=folder)
    if shards and index.num_passages != (expected := sum(shard.num_vectors for shard in shards)):
        raise InputError(
            f"holds {index.num_passages} passages",
            file=folder,
            expected=f"the {expected} of encoded_ctx_files",
        )
    return index


def open_text_index(choice: IndexChoice, sources: Sequence[PassageSource], path: str | None) -> Index:
    """Opens the index of the corpus's words from ``path`` if it exists; else builds it and saves it there."""
    if not sources:
        raise ConfigError(
            f"ctx_datasets is not set; indexer={choice.kind} searches texts, e.g. ctx_datasets=[corpus.tsv]"
        )
    # Words are searched without the prefix of texts that are embedded.
    texts = (
        [json.dumps(replace(source, passage_prefix="").identity(), sort_keys=True) for source in sources]
        if path
        else []
    )
    return IndexStore(choice, Path(path) if path else None, {"corpus": _hash(*texts)}).load_or_build(
        lambda: lexical_texts(sources)
    )


def _open_vectors(
    patterns: Sequence[str], model: BiEncoder, model_file: str
) -> list[VectorShard] | list[PickledVectors]:
    """Opens shards, or the original's embedding files if the patterns match files only."""
    matches = [matching_paths(pattern) for pattern in patterns]
    paths = list(dict.fromkeys(path for paths in matches for path in paths))
    if not all(matches) or not paths or not all(path.is_file() for path in paths):
        shards = open_shards(patterns) if patterns else []
        check_vectors_are_of(model, shards, model_file=model_file)
        return shards
    files = [PickledVectors(path) for path in paths]
    for file in files:
        if file.dimension != model.dimension:
            raise InputError(
                f"vectors of {file.dimension} dimensions",
                file=file.path,
                expected=f"the {model.dimension} of {model_file}",
            )
    ids = np.concatenate([file.ids for file in files])
    if len(np.unique(ids)) != len(ids):
        raise InputError(
            "a passage id occurs twice in these vectors", file=", ".join(str(file.path) for file in files[:4])
        )
    logger.warning(
        "embedding files do not say which model made them; %d vectors are taken to be of %s",
        len(ids),
        model_file,
    )
    return files


def _with_prefixes(
    shards: Sequence[VectorShard | PickledVectors], patterns: Sequence[str], sources: Sequence[PassageSource]
) -> list[VectorSource]:
    """Returns the shards, whose ids get the prefix of their passage source. Patterns and sources are paired
    in order, as in DPR."""
    if not any(source.id_prefix for source in sources):
        return list(shards)
    if len(sources) not in (1, len(patterns)):
        message = f"ctx_datasets has {len(sources)} entries, encoded_ctx_files {len(patterns)}"
        raise ConfigError(f"{message}; where an id_prefix is used, give one for each, in the same order")
    prefixed: list[VectorSource] = []
    for shard in shards:
        position = next((n for n, pattern in enumerate(patterns) if shard.path in matching_paths(pattern)), 0)
        prefix = sources[min(position, len(sources) - 1)].id_prefix
        prefixed.append(PrefixedSource(shard, prefix) if prefix else shard)
    return prefixed


def _hash(*parts: str) -> str:
    return text_sha256("\n".join(parts))[:32]
