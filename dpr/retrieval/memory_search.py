"""A search of passages in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.registry import IndexTexts
from dpr.retrieval.search import Search
from dpr.retrieval.settings import SEARCH_MODES
from dpr.retrieval.sides import Side, WordSide

if TYPE_CHECKING:
    from dpr.models.biencoder import BiEncoder


@dataclass
class MemorySearch(Search):
    """An exact search of passages and vectors in memory."""

    model: BiEncoder | None

    @property
    def mode(self) -> str:
        return "bm25" if self.model is None else "dense"

    @property
    def modes(self) -> tuple[str, ...]:
        return ("bm25",) if self.model is None else SEARCH_MODES

    def side(self, mode: str) -> Side:
        if mode == "bm25":
            texts = (f"{passage.title} {passage.text}" for passage in self.added.values())
            return WordSide(Bm25Index.build(IndexTexts(list(self.added), texts)))
        from dpr.indexer.living_vectors import LivingVectors
        from dpr.retrieval.dense import DenseSide

        # opened before there are passages, and changed with them
        assert self.model is not None
        return DenseSide(self.model, LivingVectors(None, self.model.dimension, device=self.model.device))
