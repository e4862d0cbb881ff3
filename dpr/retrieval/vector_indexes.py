"""Indexes over vectors, and the models of the questions that are searched in them. A saved index is reused if it was
made of the same vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.paths import matching_paths
from dpr.embedding.source import PassageSource, corpora_of, require_corpora
from dpr.formats.original.vectors import PickledVectors
from dpr.formats.vector_shards import VectorShard, open_shards
from dpr.indexer.registry import Index, held_back
from dpr.indexer.saved import IndexStore
from dpr.indexer.vectors import PrefixedSource, VectorSource
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.dense import DenseSide, encode_questions, fit_to_vectors
from dpr.retrieval.indexes import index_choice, short_hash
from dpr.retrieval.question_form import QuestionForm
from dpr.retrieval.settings import RetrievalConfig
from dpr.storage.durable import MANIFEST, describe_file, read_manifest

logger = get_logger(__name__)


def open_dense(
    config: RetrievalConfig,
    sources: Sequence[PassageSource],
    *,
    form: QuestionForm,
    device: torch.device,
    questions: Sequence[str] = (),
) -> DenseSide:
    """Opens the model of the settings and an index of its vectors. The recall of a new index is measured on
    ``questions``."""
    if not config.model_file:
        kind = config.indexer.kind
        raise ConfigError(
            f"model_file is not set; indexer={kind} searches vectors, e.g. model_file=runs/first"
        )
    model = BiEncoder.load(str(config.model_file), device=device, **config.encoder.arguments())
    agreed = form.agreed(model.tensorizer.text)
    some = [questions[row] for row in held_back(len(questions))]

    def queries() -> np.ndarray:
        return encode_questions(model, some, agreed, batch_size=config.batch_size)

    index = open_vector_index(config, model, sources, questions=queries if some else None)
    return DenseSide(model, index, form=agreed, batch_size=config.batch_size)


def open_vector_index(
    config: RetrievalConfig,
    model: BiEncoder,
    sources: Sequence[PassageSource],
    *,
    questions: Callable[[], np.ndarray] | None = None,
) -> Index:
    """Opens the index of the vectors from ``index_path`` if it exists; else builds it and saves it there.

    Raises:
        InputError: the vectors are of another model, the saved index is of other vectors, or either is of
        other passages than ``sources``.
    """
    patterns = config.vector_patterns()
    shards = _open_vectors(patterns, model, f"model_file={config.model_file}")
    corpora = corpora_of(shard.metadata for shard in shards if isinstance(shard, VectorShard))
    require_corpora(corpora, sources, file=", ".join(patterns))

    # Ids get the prefix of their passage source. Patterns and sources are paired in order, as in DPR.
    prefixes = [source.id_prefix for source in sources]
    if any(prefixes) and len(prefixes) not in (1, len(patterns)):
        message = f"ctx_datasets has {len(prefixes)} entries, encoded_ctx_files {len(patterns)}"
        raise ConfigError(f"{message}; where an id_prefix is used, give one for each, in the same order")
    folder = Path(config.index_path) if config.index_path else None
    vectors: list[VectorSource] = []
    made_of = []
    for shard in shards:
        prefix = ""
        if any(prefixes):
            position = next(n for n, pattern in enumerate(patterns) if shard.path in matching_paths(pattern))
            prefix = prefixes[min(position, len(prefixes) - 1)]
        vectors.append(PrefixedSource(shard, prefix) if prefix else shard)
        if folder is not None:
            file = shard.path / MANIFEST if isinstance(shard, VectorShard) else shard.path
            made_of.append(f"{describe_file(file)['sha256']} {prefix}")
    identity = {} if folder is None else {"model_fingerprint": model.fingerprint}
    if made_of:
        identity["vectors"] = short_hash(*made_of)

    store = IndexStore(index_choice(config.indexer), folder, identity, corpora, model.device)
    index = store.load_or_build((lambda: vectors) if shards else None, questions=questions)
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


def _open_vectors(
    patterns: Sequence[str], model: BiEncoder, model_file: str
) -> Sequence[VectorShard | PickledVectors]:
    """Opens shards, or the original's embedding files if the patterns match files only."""
    matches = [matching_paths(pattern) for pattern in patterns]
    paths = list(dict.fromkeys(path for paths in matches for path in paths))
    if not all(matches) or not paths or not all(path.is_file() for path in paths):
        shards = open_shards(patterns) if patterns else []
        fit_to_vectors(model, shards, model_file=model_file)
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
