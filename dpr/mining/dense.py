"""Search by a bi-encoder, exact by default, over given vectors of the corpus or vectors that are made here.

The model runs in one process, on all threads or on the GPU, so that the bits of vectors do not depend on how
many processes search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.batch import TokenBatch
from dpr.core.errors import InputError
from dpr.core.logs import Progress, get_logger
from dpr.core.settings import Settings
from dpr.embedding.encode import encode_tokens, tokenize_passages
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.formats.training_sets import TrainingSet
from dpr.formats.vector_shards import VectorShard
from dpr.indexer.ranking import to_rankings
from dpr.indexer.registry import Index, IndexChoice
from dpr.indexer.store import IndexStore
from dpr.indexer.vectors import paired_dots
from dpr.mining.corpus import MiningCorpus
from dpr.mining.search import Query, QueryHits
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import MANIFEST, describe_file, durable_folder

logger = get_logger(__name__)

BLOCK_ROWS = 4096
"""Questions for which the vectors of the corpus are read once."""
_AT_ONCE = 8192
EXACT = IndexChoice("exact", Settings())


@dataclass(frozen=True)
class DenseSearch:
    """Ranks by a bi-encoder.

    Args:
        shards: vectors of the corpus by this model, in the order of the corpus; if there are none, they are
        made in the work folder. batch_tokens, precision: of the forward passes. query_prefix, passage_prefix:
        put before what is encoded here, as in training; given shards must have been made with the latter.
            The model's own prompts need not be named.
        prompt: name of the model's prompt for these questions.
    """

    model: BiEncoder
    shards: Sequence[VectorShard] = ()
    batch_tokens: int = 4096
    precision: str = "fp32"
    query_prefix: str = ""
    passage_prefix: str = ""
    index: IndexChoice = EXACT
    prompt: str | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError where the model has other prompts, or none of that name."""
        text = self.model.tensorizer.text
        query = text.agreed_prefix(self.query_prefix, text.question_prompt(self.prompt), key="query_prefix")
        passage = text.agreed_prefix(self.passage_prefix, text.passage_prompt, key="passage_prefix")
        object.__setattr__(self, "query_prefix", query or "")
        object.__setattr__(self, "passage_prefix", passage or "")

    @cached_property
    def _fingerprint(self) -> str:
        return self.model.fingerprint

    @property
    def mined_by(self) -> str:
        return f"dense:{self._fingerprint[:12]}"

    @property
    def block_rows(self) -> int:
        return BLOCK_ROWS

    def facts(self) -> dict[str, Any]:
        vectors = [describe_file(shard.path / MANIFEST)["sha256"] for shard in self.shards]
        facts: dict[str, Any] = {
            "kind": "dense",
            "model_fingerprint": self._fingerprint,
            "precision": self.precision,
            "vectors": vectors,
        }
        if self.index.kind != "exact":
            facts["indexer"] = self.index.facts()
        prefixes = {
            "query_prefix": self.query_prefix,
            "passage_prefix": self.passage_prefix,
            "prompt": self.prompt,
        }
        return facts | {name: prefix for name, prefix in prefixes.items() if prefix}

    def prepare(
        self, train: TrainingSet, blocks: Sequence[range], corpus: MiningCorpus, work: Path
    ) -> DenseFinder:
        shards = self.shards or [self._embed(corpus, work)]
        _require_order_of(corpus, shards)
        missing = [rows for rows in blocks if not question_folder(work, rows).is_dir()]
        progress = Progress(
            "encoding", len(train), unit="questions", done=len(train) - sum(map(len, missing))
        )
        for rows in missing:
            progress.advance(len(rows), self._encode_questions(train, rows, corpus, work))
        progress.close()
        finder = DenseFinder(tuple(shard.path for shard in shards), work, str(self.model.device), self.index)
        if self.index.index_class.is_saved:
            # built here, before several processes ask; by a copy, as open shards cannot be sent to them
            replace(finder).open_index(
                lambda: np.load(question_folder(work, blocks[0]) / "vectors.npy", allow_pickle=False)
            )
        return finder

    def _embed(self, corpus: MiningCorpus, work: Path) -> VectorShard:
        config = EmbedConfig(
            out_file=str(work / "vectors"), batch_tokens=self.batch_tokens, precision=self.precision
        )
        return VectorShard(
            embed_shard(self.model, corpus.source(self.passage_prefix), config).folder, verify=False
        )

    def _encode_questions(self, train: TrainingSet, rows: range, corpus: MiningCorpus, work: Path) -> int:
        """Stores the vectors of a block of questions, and each question's best score of positives outside the
        corpus (NaN: it has none).

        Returns the number of tokens of the questions.
        """
        samples = [train[row] for row in rows]
        tensorizer = self.model.tensorizer
        questions = [sample.question for sample in samples]
        tokens = TokenBatch.from_lists(
            tensorizer.question_tokens(questions, prompt=self.prompt, prefix=self.query_prefix)
        )
        vectors = self._encode(tokens, "question")
        best = np.full(len(rows), np.nan, dtype=np.float32)
        # as the corpus was embedded
        encoder_type = str(self.shards[0].metadata.get("encoder_type", "ctx")) if self.shards else "ctx"
        source = corpus.source(self.passage_prefix)
        outside = [
            (index, source.as_encoded(passage))
            for index, sample in enumerate(samples)
            for passage in sample.positives
            if corpus.row_of(passage) is None
        ]
        for start in range(0, len(outside), _AT_ONCE):
            portion = outside[start : start + _AT_ONCE]
            places = np.array([index for index, _ in portion])
            others = self._encode(
                tokenize_passages(tensorizer, [passage for _, passage in portion]), encoder_type
            )
            np.fmax.at(best, places, paired_dots(vectors, places, others, np.arange(len(others))))
        with durable_folder(question_folder(work, rows), overwrite=True) as folder:
            np.save(folder / "vectors.npy", vectors, allow_pickle=False)
            np.save(folder / "outside.npy", best, allow_pickle=False)
        return len(tokens.tokens)

    def _encode(self, tokens: TokenBatch, encoder_type: str) -> np.ndarray:
        return encode_tokens(
            self.model,
            tokens,
            encoder_type=encoder_type,
            batch_tokens=self.batch_tokens,
            precision=self.precision,
        )


@dataclass(frozen=True)
class DenseFinder:
    """The score of a positive is the dot product of its vector and the question's; ``prepare`` scored
    positives outside the corpus."""

    folders: tuple[Path, ...]
    work: Path
    device: str
    index: IndexChoice = EXACT

    @cached_property
    def _shards(self) -> list[VectorShard]:
        return [VectorShard(folder, verify=False) for folder in self.folders]

    def open_index(self, questions: Callable[[], np.ndarray] | None = None) -> Index:
        folder = self.work / "index" if self.index.index_class.is_saved else None
        # a worker elsewhere may have no GPU; the result is the same
        device = self.device if torch.cuda.is_available() else "cpu"
        return IndexStore(self.index, folder, device=device).load_or_build(
            lambda: self._shards, questions=questions
        )

    _opened = cached_property(open_index)

    def find(self, rows: range, queries: Sequence[Query], depth: int) -> list[QueryHits]:
        folder = question_folder(self.work, rows)
        questions = np.load(folder / "vectors.npy", allow_pickle=False)
        best = np.load(folder / "outside.npy", allow_pickle=False)
        pairs = np.array(
            [(index, row) for index, query in enumerate(queries) for row in query.positives], dtype=np.int64
        ).reshape(-1, 2)
        for part, vectors in self._vectors_of(pairs):
            np.fmax.at(best, part[:, 0], paired_dots(questions, part[:, 0], vectors, np.arange(len(vectors))))
        rankings = to_rankings(self._opened.search(questions, depth))
        return [
            QueryHits(hits, None if np.isnan(score) else float(score))
            for hits, score in zip(rankings, best, strict=True)
        ]

    def scores(
        self, rows: range, questions: Sequence[str], passages: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        queries = np.load(question_folder(self.work, rows) / "vectors.npy", allow_pickle=False)
        flat = [(place, row) for place, listed in enumerate(passages) for row in listed]
        pairs = np.array([(*pair, index) for index, pair in enumerate(flat)], dtype=np.int64).reshape(-1, 3)
        values = np.empty(len(flat), dtype=np.float32)
        for part, vectors in self._vectors_of(pairs):
            values[part[:, 2]] = paired_dots(queries, part[:, 0], vectors, np.arange(len(vectors)))
        of_questions = np.split(values, np.cumsum([len(listed) for listed in passages])[:-1])
        return [scores.tolist() for scores in of_questions]

    def _vectors_of(self, pairs: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The (place, row of the corpus, ...) pairs, sorted by row, with the vectors at these rows, in one
        pass that reads only them."""
        pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
        start = 0
        for shard in self._shards:
            for ids, vectors in shard.chunks():
                low, high = np.searchsorted(pairs[:, 1], [start, start + len(ids)])
                if low < high:
                    yield pairs[low:high], np.asarray(vectors[pairs[low:high, 1] - start], dtype=np.float32)
                start += len(ids)


def _require_order_of(corpus: MiningCorpus, shards: Sequence[VectorShard]) -> None:
    """Raises InputError unless the vectors are those of the corpus, one by one and in its order."""
    total = sum(shard.num_vectors for shard in shards)
    names = ", ".join(str(shard.path) for shard in shards[:4])
    hint = f"embed {corpus.file} with this model, without an id_prefix, or leave vectors out"
    if total != corpus.num_passages:
        raise InputError(
            f"{total} vectors",
            file=names,
            expected=f"one for each of the {corpus.num_passages} passages",
            hint=hint,
        )
    expected = corpus.ids()
    for shard in shards:
        for ids in shard.id_chunks():
            for key, expected_id in zip(ids.tolist(), expected, strict=False):
                if key != expected_id.encode():
                    message = f"a vector of the id {key.decode()!r} where the corpus has {expected_id!r}"
                    raise InputError(
                        message,
                        file=shard.path,
                        expected=f"the passages of {corpus.file} in their order",
                        hint=hint,
                    )


def question_folder(work: Path, rows: range) -> Path:
    """Where the ``vectors.npy`` (B, D) and ``outside.npy`` (B,) of a block are."""
    return work / f"questions-{rows.start:09d}-{rows.stop:09d}"
