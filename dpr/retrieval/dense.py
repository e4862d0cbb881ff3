"""The side of a search that ranks by vectors: a bi-encoder's question vectors, and an index of passage
vectors."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import ProgressBar, get_logger
from dpr.core.paths import matching_paths
from dpr.core.records import Passage
from dpr.data.text import QuestionForm
from dpr.embedding.encode import (
    TokenBudget,
    default_batch_tokens,
    encode_tokens,
    encode_within_memory,
    fit_to_vectors,
    tokenize_passages,
)
from dpr.embedding.source import PassageSource, require_corpora
from dpr.formats.original.vectors import PickledVectors
from dpr.formats.vector_shards import VectorShard, open_shards
from dpr.indexer.ranking import Ranking, to_rankings
from dpr.indexer.registry import Index, held_back
from dpr.indexer.saved import IndexStore
from dpr.indexer.vectors import PrefixedSource, VectorSource
from dpr.models.biencoder import BATCH_TOKENS, BiEncoder
from dpr.retrieval.settings import RetrievalConfig
from dpr.retrieval.sides import index_choice, short_hash
from dpr.storage.durable import MANIFEST, describe_file, read_manifest

logger = get_logger(__name__)
_LOOKED_AT = 1000  # questions
_CHUNK = 8192  # passages, as by dpr embed


def question_batch(model: BiEncoder, questions: Sequence[str], form: QuestionForm) -> TokenBatch:
    """Returns the tokens of questions; ``form`` has been agreed with the model."""
    sequences = model.tensorizer.question_tokens(
        questions, prompt=form.prompt, prefix=form.before_questions, suffix=form.suffix
    )
    return TokenBatch.from_lists(
        sequences, model.tensorizer.representation_positions(sequences, form.selector)
    )


class DenseSide:
    """A bi-encoder's question tower and an index of its passage vectors, which may be set later. ``seconds`` are spent
    in ``tokenise`` and ``inference``."""

    def __init__(
        self,
        model: BiEncoder,
        index: Any = None,
        *,
        form: QuestionForm | None = None,
        batch_size: int = 128,
    ) -> None:
        self.model = model
        self.index: Index = index
        self.form = (form or QuestionForm()).agreed(model.tensorizer.text)
        self.batch_size = batch_size
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Returns question vectors (Q, D) float32, in the order given."""
        if not questions:
            return np.zeros((0, self.model.dimension), dtype=np.float32)
        start = time.perf_counter()
        tokens = question_batch(self.model, questions, self.form)
        tokenised = time.perf_counter()
        progress = ProgressBar("encoding questions", len(questions), unit="questions")
        try:
            vectors = encode_tokens(
                self.model,
                tokens,
                encoder_type=self.form.encoder_type,
                batch_tokens=BATCH_TOKENS,
                batch_size=self.batch_size,
                on_batch=progress.advance,
            )
        finally:
            progress.close()
        self.seconds["tokenise"] += tokenised - start
        self.seconds["inference"] += time.perf_counter() - tokenised
        return vectors

    def encode_passages(self, passages: Sequence[Passage]) -> np.ndarray | None:
        """Returns passage vectors (n, D) float32, in the order given, bitwise those of ``dpr embed``; None for no
        passages."""
        budget = TokenBudget(default_batch_tokens(self.model.device))
        progress = ProgressBar("embedding", len(passages), quiet=None)
        coded = []
        try:
            for start in range(0, len(passages), _CHUNK):
                tokens = tokenize_passages(self.model.tensorizer, passages[start : start + _CHUNK])
                coded.append(encode_within_memory(self.model, tokens, budget, on_batch=progress.advance))
        finally:
            progress.close()
        return np.concatenate(coded) if coded else None

    def retrieve(self, questions: Sequence[str], k: int) -> list[Ranking]:
        """Returns up to ``k`` passages for each question, best first."""
        return to_rankings(self.index.search(self.encode(questions), k))

    def warn_of_unknown_words(self, questions: Sequence[str], source: str) -> None:
        """Warns if the model lacks many words of the questions, judged by the first ones."""
        tokens = question_batch(self.model, questions[:_LOOKED_AT], self.form).tokens
        self.model.tensorizer.check_known(tokens.numpy(), source, refuse=False)


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
    side = DenseSide(model, form=form, batch_size=config.batch_size)
    some = [questions[row] for row in held_back(len(questions))]
    measured_on = (lambda: side.encode(some)) if some else None
    side.index = open_vector_index(config, model, sources, questions=measured_on)
    return side


def open_vector_index(
    config: RetrievalConfig,
    model: BiEncoder,
    sources: Sequence[PassageSource],
    *,
    questions: Callable[[], np.ndarray] | None = None,
) -> Index:
    """Opens the index of the vectors from ``index_path`` if it exists; else builds it and saves it there.

    Raises:
        InputError: the vectors are from another model, the saved index is from other vectors, or either is
        from other passages than ``sources``.
    """
    patterns = config.vector_patterns()
    shards = _open_vectors(patterns, model, f"model_file={config.model_file}")
    stated: Any = [shard.metadata for shard in shards if isinstance(shard, VectorShard)]
    corpora = require_corpora(stated, sources, file=", ".join(patterns))

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
        require_corpora(stated if isinstance(stated, list) else (), sources, file=folder)
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
        "embedding files do not name their model; %d vectors are assumed to be from %s",
        len(ids),
        model_file,
    )
    return files
