"""Search by BM25."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpr.formats.training_sets import TrainingSet
from dpr.indexer.registry import Index, IndexChoice, Texts
from dpr.indexer.settings import Bm25Settings
from dpr.mining.corpus import MiningCorpus
from dpr.mining.search import Asked, Found

BLOCK_ROWS = 500


@dataclass(frozen=True, slots=True)
class LexicalSearch:
    """An index over titles and texts: BM25 unless another is chosen. BM25 is made in memory (its postings, 8 bytes a word), then mapped."""

    index: IndexChoice = field(default_factory=lambda: IndexChoice("bm25", Bm25Settings()))

    @property
    def mined_by(self) -> str:
        return self.index.kind

    @property
    def block_rows(self) -> int:
        return BLOCK_ROWS

    def facts(self) -> dict[str, Any]:
        return self.index.facts()

    def prepare(self, train: TrainingSet, blocks: Sequence[range], corpus: MiningCorpus, work: Path) -> PreparedLexical:
        prepared = PreparedLexical(self.index, work / "index", corpus.file, work)
        prepared.open()
        return prepared


@dataclass(frozen=True, slots=True)
class PreparedLexical:
    index: IndexChoice
    folder: Path
    corpus: Path
    work: Path

    def open(self) -> LexicalFinder:
        return LexicalFinder(self.index.open(self._texts, folder=self.folder))

    def _texts(self) -> Texts:
        corpus = MiningCorpus(self.corpus, self.work)
        return Texts(list(corpus.ids()), (f"{passage.title} {passage.text}" for passage in corpus.passages()))


class LexicalFinder:
    """A positive's score is known where the positive is in the corpus and the index tells scores of chosen passages."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def find(self, rows: range, asked: Sequence[Asked], depth: int) -> list[Found]:
        found = []
        for one in asked:
            hits, own = self._index.search_beside(one.question, depth, one.positives)
            found.append(Found(hits, max(own, default=None)))
        return found
