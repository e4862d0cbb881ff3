"""The sides of a search, by words and by vectors (``dpr.retrieval.dense``), and the fusion of their rankings. A search
by words imports no model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dpr.data.text import normalize_question
from dpr.indexer.ranking import Ranking, fuse_linear, to_rankings
from dpr.indexer.registry import Index
from dpr.indexer.settings import DEFAULT_WEIGHT


class Side(Protocol):
    """One way of ranking passages for questions."""

    index: Index
    seconds: defaultdict[str, float]
    """Time spent by stage; its reader may clear it."""

    def retrieve(self, questions: Sequence[str], k: int) -> list[Ranking]:
        """Returns up to ``k`` passages for each question, best first."""
        ...


class LexicalRetriever:
    """An index over the words of titles and texts."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def retrieve(self, questions: Sequence[str], k: int) -> list[Ranking]:
        return to_rankings(self.index.search([normalize_question(question) for question in questions], k))


@dataclass(frozen=True, slots=True)
class Fusion:
    """Fusion of two rankings (``dpr.indexer.ranking``). ``weight`` is the dense side's share, ``depth`` the
    number of passages taken from each side, at least as many as are requested."""

    weight: float = DEFAULT_WEIGHT
    depth: int = 100

    def fuse(self, dense: Sequence[Ranking], lexical: Sequence[Ranking], k: int) -> list[Ranking]:
        return fuse_linear(dense, lexical, weight=self.weight, k=k)
