"""Ways to search a corpus for the questions of a block: by BM25, or exactly by a bi-encoder, over given vectors
of the corpus or vectors that are made here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dpr.core.batch import TokenBatch
from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.embedding.encode import encode_tokens, tokenize_passages
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.formats.vector_shards import VectorShard
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import Ranking, to_rankings
from dpr.indexer.registry import Index, IndexChoice, IndexStore, Texts
from dpr.indexer.settings import Bm25Settings
from dpr.indexer.vectors import AllRows, paired_dots
from dpr.mining.corpus import MiningCorpus
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import MANIFEST, describe_file

BLOCK_ROWS = 500
DENSE_BLOCK_ROWS = 4096
"""Questions for which the vectors of the corpus are read once."""
_AT_ONCE = 8192


@dataclass(frozen=True, slots=True)
class Query:
    """A question, the rows of its positives in the corpus, and its positives that are not there."""

    question: str
    positives: Sequence[int] = ()
    outside: Sequence[Passage] = ()


@dataclass(frozen=True, slots=True)
class QueryHits:
    """The best passages of a question, and the highest score of its positives; None: unknown."""

    hits: Ranking
    positive_score: float | None


class Finder(Protocol):
    """A search of one corpus."""

    def find(self, queries: Sequence[Query], depth: int) -> list[QueryHits]:
        """The ``depth`` best passages for each question of a block."""
        ...

    def scores(self, questions: Sequence[str], passages: Sequence[Sequence[int]]) -> list[list[float]]:
        """The scores of given passages, by their rows in the corpus, for each question of a block, whether it
        would find them or not."""
        ...


class Search(Protocol):
    """A way to search, with everything that decides its result."""

    @property
    def mined_by(self) -> str:
        """What negatives carry."""
        ...

    @property
    def block_rows(self) -> int:
        """Questions searched together."""
        ...

    def metadata(self) -> dict[str, Any]:
        """What decides the result, as JSON; if any of it changes, mining starts over."""
        ...

    def prepare(self, corpus: MiningCorpus) -> Finder:
        """Writes to the corpus's work folder what is missing there. What BM25 returns can be sent to other
        processes, which open the index at the first ``find``."""
        ...


class LexicalSearch:
    """BM25 over titles and texts, whose index is built in memory (its postings, 8 bytes a word) and then
    mapped."""

    mined_by = "bm25"
    index = IndexChoice("bm25", Bm25Settings())

    @property
    def block_rows(self) -> int:
        return BLOCK_ROWS

    def metadata(self) -> dict[str, Any]:
        return self.index.metadata()

    def prepare(self, corpus: MiningCorpus) -> LexicalFinder:
        finder = LexicalFinder(corpus.file, corpus.work)
        finder.open_index()  # built here, before several processes ask for it
        return finder


@dataclass(frozen=True)
class LexicalFinder:
    """The score of a positive is known if it is in the corpus."""

    corpus: Path
    work: Path

    def open_index(self) -> Index:
        def texts() -> Texts:
            corpus = MiningCorpus(self.corpus, self.work)
            joined = (f"{passage.title} {passage.text}" for passage in corpus.passages())
            return Texts(corpus.ids(), joined)

        return IndexStore(LexicalSearch.index, self.work / "index").load_or_build(texts)

    @cached_property
    def _opened(self) -> Any:
        return self.open_index()

    def find(self, queries: Sequence[Query], depth: int) -> list[QueryHits]:
        searched = (self._opened.search_beside(query.question, depth, query.positives) for query in queries)
        return [QueryHits(hits, max(scores, default=None)) for hits, scores in searched]

    def scores(self, questions: Sequence[str], passages: Sequence[Sequence[int]]) -> list[list[float]]:
        pairs = zip(questions, passages, strict=True)
        return [self._opened.search_beside(question, 1, listed)[1] for question, listed in pairs]


@dataclass(frozen=True)
class DenseSearch:
    """Ranks by a bi-encoder.

    Args:
        shards: vectors of the corpus by this model, in the order of the corpus; if there are none, they are
            made in the work folder.
        batch_tokens, precision: of the forward passes.
        prompt: name of the model's prompt for these questions.
    """

    model: BiEncoder
    shards: Sequence[VectorShard] = ()
    batch_tokens: int = 4096
    precision: str = "fp32"
    prompt: str | None = None

    @cached_property
    def _fingerprint(self) -> str:
        return self.model.fingerprint

    @property
    def mined_by(self) -> str:
        return f"dense:{self._fingerprint[:12]}"

    @property
    def block_rows(self) -> int:
        return DENSE_BLOCK_ROWS

    def metadata(self) -> dict[str, Any]:
        return {
            "kind": "dense",
            "model_fingerprint": self._fingerprint,
            "precision": self.precision,
            "vectors": [describe_file(shard.path / MANIFEST)["sha256"] for shard in self.shards],
            "prompt": self.prompt,
        }

    def prepare(self, corpus: MiningCorpus) -> DenseFinder:
        shards = self.shards
        if not shards:
            config = EmbedConfig(
                out_file=str(corpus.work / "vectors"),
                batch_tokens=self.batch_tokens,
                precision=self.precision,
            )
            folder = embed_shard(self.model, corpus.source(), config).folder
            shards = [VectorShard(folder, verify=False)]
        _require_order_of(corpus, shards)
        return DenseFinder(self, shards, ExactIndex(shards, device=self.model.device))

    def encoded(self, tokens: TokenBatch, encoder_type: str) -> np.ndarray:
        return encode_tokens(
            self.model,
            tokens,
            encoder_type=encoder_type,
            batch_tokens=self.batch_tokens,
            precision=self.precision,
        )

    def encoded_questions(self, questions: Sequence[str]) -> np.ndarray:
        tokens = self.model.tensorizer.question_tokens(questions, prompt=self.prompt)
        return self.encoded(TokenBatch.from_lists(tokens), "question")


@dataclass(frozen=True)
class DenseFinder:
    """The score of every positive is known: one that is not in the corpus is encoded."""

    search: DenseSearch
    shards: Sequence[VectorShard]
    index: ExactIndex

    @cached_property
    def rows(self) -> AllRows:
        return AllRows(self.shards)

    def find(self, queries: Sequence[Query], depth: int) -> list[QueryHits]:
        questions = self.search.encoded_questions([query.question for query in queries])
        best = np.full(len(queries), np.nan, dtype=np.float32)
        pairs = [(place, row) for place, query in enumerate(queries) for row in query.positives]
        places = np.array([place for place, _ in pairs], dtype=np.int64)
        np.fmax.at(best, places, self._dots(questions, pairs))

        # as the corpus was embedded
        encoder_type = str(self.shards[0].metadata.get("encoder_type", "ctx"))
        outside = [(place, passage) for place, query in enumerate(queries) for passage in query.outside]
        for start in range(0, len(outside), _AT_ONCE):
            portion = outside[start : start + _AT_ONCE]
            places = np.array([place for place, _ in portion])
            tokens = tokenize_passages(self.search.model.tensorizer, [passage for _, passage in portion])
            vectors = self.search.encoded(tokens, encoder_type)
            np.fmax.at(best, places, paired_dots(questions, places, vectors, np.arange(len(vectors))))

        rankings = to_rankings(self.index.search(questions, depth))
        return [
            QueryHits(hits, None if np.isnan(score) else float(score))
            for hits, score in zip(rankings, best, strict=True)
        ]

    def scores(self, questions: Sequence[str], passages: Sequence[Sequence[int]]) -> list[list[float]]:
        pairs = [(place, row) for place, listed in enumerate(passages) for row in listed]
        values = iter(self._dots(self.search.encoded_questions(questions), pairs).tolist())
        return [[next(values) for _ in listed] for listed in passages]

    def _dots(self, questions: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
        """Scores (n,) of the pairs of a question's place and a passage's row; only these rows are read."""
        places, rows = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        order = np.argsort(rows, kind="stable")
        scores = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(order), _AT_ONCE):
            part = order[start : start + _AT_ONCE]
            distinct, columns = np.unique(rows[part], return_inverse=True)
            scores[part] = paired_dots(questions, places[part], self.rows.take(distinct)[1], columns)
        return scores


def _require_order_of(corpus: MiningCorpus, shards: Sequence[VectorShard]) -> None:
    """Raises InputError unless the vectors are those of the corpus, one by one and in its order."""
    total = sum(shard.num_vectors for shard in shards)
    hint = f"embed {corpus.file} with this model, without an id_prefix, or leave vectors out"
    if total != corpus.num_passages:
        raise InputError(
            f"{total} vectors",
            file=", ".join(str(shard.path) for shard in shards[:4]),
            expected=f"one for each of the {corpus.num_passages} passages",
            hint=hint,
        )
    expected = corpus.ids()
    for shard in shards:
        for ids in shard.id_chunks():
            for key, expected_id in zip(ids.tolist(), expected, strict=False):
                if key != expected_id.encode():
                    raise InputError(
                        f"a vector of the id {key.decode()!r} where the corpus has {expected_id!r}",
                        file=shard.path,
                        expected=f"the passages of {corpus.file} in their order",
                        hint=hint,
                    )
