"""What mining asks of a way to search: prepared once, opened by every process, asked for a block of questions
at a time; and search by BM25."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from dpr.formats.training_sets import TrainingSet
from dpr.indexer.ranking import Ranking
from dpr.indexer.registry import Index, IndexChoice, Texts
from dpr.indexer.settings import Bm25Settings
from dpr.indexer.store import IndexStore
from dpr.mining.corpus import MiningCorpus

BLOCK_ROWS = 500


@dataclass(frozen=True, slots=True)
class Query:
    """A question, and the rows of its positives in the corpus."""

    question: str
    positives: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueryHits:
    """The best passages of a question, and the highest score of its positives; None: unknown."""

    hits: Ranking
    positive_score: float | None


class Finder(Protocol):
    """Names of what is on disk. It is sent to other processes and opens the index at the first ``find``."""

    def find(self, rows: range, queries: Sequence[Query], depth: int) -> list[QueryHits]:
        """The ``depth`` best passages for each question of a block, which are the ``rows`` of the training
        set."""
        ...

    def scores(
        self, rows: range, questions: Sequence[str], passages: Sequence[Sequence[int]]
    ) -> list[list[float]]:
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

    def facts(self) -> dict[str, Any]:
        """What decides the result, as JSON; if any of it changes, mining starts over."""
        ...

    def prepare(
        self, train: TrainingSet, blocks: Sequence[range], corpus: MiningCorpus, work: Path
    ) -> Finder:
        """Writes to ``work`` what is missing there."""
        ...


@dataclass(frozen=True, slots=True)
class LexicalSearch:
    """An index of titles and texts: BM25 by default, which is built in memory (its postings, 8 bytes a word)
    and then mapped."""

    index: IndexChoice = field(default_factory=lambda: IndexChoice("bm25", Bm25Settings()))

    @property
    def mined_by(self) -> str:
        return self.index.kind

    @property
    def block_rows(self) -> int:
        return BLOCK_ROWS

    def facts(self) -> dict[str, Any]:
        return self.index.facts()

    def prepare(
        self, train: TrainingSet, blocks: Sequence[range], corpus: MiningCorpus, work: Path
    ) -> LexicalFinder:
        finder = LexicalFinder(self.index, corpus.file, work)
        finder.open_index()  # built here, before several processes ask for it
        return finder


@dataclass(frozen=True)
class LexicalFinder:
    """The score of a positive is known if it is in the corpus and the index can score given passages."""

    index: IndexChoice
    corpus: Path
    work: Path

    def open_index(self) -> Index:
        def texts() -> Texts:
            corpus = MiningCorpus(self.corpus, self.work)
            return Texts(
                list(corpus.ids()), (f"{passage.title} {passage.text}" for passage in corpus.passages())
            )

        return IndexStore(self.index, self.work / "index").load_or_build(texts)

    _opened = cached_property(open_index)

    def find(self, rows: range, queries: Sequence[Query], depth: int) -> list[QueryHits]:
        searched = (self._opened.search_beside(query.question, depth, query.positives) for query in queries)
        return [QueryHits(hits, max(scores, default=None)) for hits, scores in searched]

    def scores(
        self, rows: range, questions: Sequence[str], passages: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        return [
            self._opened.search_beside(question, 1, listed)[1]
            for question, listed in zip(questions, passages, strict=True)
        ]
