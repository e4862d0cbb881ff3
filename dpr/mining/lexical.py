"""Search by BM25."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.core.logs import get_logger
from dpr.formats.training_sets import TrainingSet
from dpr.indexer.bm25 import Bm25Index
from dpr.mining.corpus import MiningCorpus
from dpr.mining.search import Asked, Found

logger = get_logger(__name__)

BLOCK_ROWS = 500


@dataclass(frozen=True, slots=True)
class LexicalSearch:
    """BM25 over titles and texts. Memory: the index is made in memory (its postings, and 8 bytes a word), then mapped."""

    k1: float = 0.9
    b: float = 0.4

    @property
    def mined_by(self) -> str:
        return "bm25"

    @property
    def block_rows(self) -> int:
        return BLOCK_ROWS

    def facts(self) -> dict[str, Any]:
        return {"kind": "bm25", "k1": self.k1, "b": self.b}

    def prepare(self, train: TrainingSet, blocks: Sequence[range], corpus: MiningCorpus, work: Path) -> PreparedLexical:
        folder = work / "index"
        if not folder.is_dir():
            logger.info("indexing %d passages", corpus.num_passages)
            ids = list(corpus.ids())
            texts = (f"{passage.title} {passage.text}" for passage in corpus.passages())
            Bm25Index.build(ids, texts, k1=self.k1, b=self.b).save(folder, overwrite=True)
        return PreparedLexical(folder)


@dataclass(frozen=True, slots=True)
class PreparedLexical:
    folder: Path

    def open(self) -> LexicalFinder:
        return LexicalFinder(Bm25Index.load(self.folder))


class LexicalFinder:
    """A positive's score is known where the positive is in the corpus."""

    def __init__(self, index: Bm25Index) -> None:
        self._index = index

    def find(self, rows: range, asked: Sequence[Asked], depth: int) -> list[Found]:
        found = []
        for one in asked:
            hits, own = self._index.search_beside(one.question, depth, one.positives)
            found.append(Found(hits, max(own, default=None)))
        return found
