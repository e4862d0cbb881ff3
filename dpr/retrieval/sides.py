"""The sides of a search, by words and by vectors (``dpr.retrieval.dense``), the fusion of their rankings, and what
opens them. A search by words imports no model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dpr.core.records import Passage
from dpr.data.text import normalize_question
from dpr.indexer.ranking import Ranking, fuse_linear, to_rankings
from dpr.indexer.registry import Index
from dpr.indexer.settings import DEFAULT_WEIGHT
from dpr.retrieval.passages import PassageFields


class Side(Protocol):
    """One way of ranking passages for questions."""

    index: Index
    seconds: defaultdict[str, float]
    """Time spent by stage; its reader may clear it."""

    def retrieve(self, questions: Sequence[str], k: int) -> list[Ranking]:
        """Returns up to ``k`` passages for each question, best first."""
        ...


class WordSide:
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


class Search(Protocol):
    """A corpus and how it is searched, on disk or in memory: what ``dpr.Retriever`` asks."""

    @property
    def mode(self) -> str:
        """Returns the search mode that is used if none is named. Its files may be missing (``modes``)."""
        ...

    @property
    def modes(self) -> tuple[str, ...]:
        """Returns the search modes for which there are all files."""
        ...

    @property
    def fusion(self) -> Fusion:
        """Returns the fusion of a hybrid."""
        ...

    @property
    def files(self) -> Sequence[Path]:
        """Returns the files of the passages."""
        ...

    def query_text(self, question: str) -> str:
        """Returns the question in the form that sides get."""
        ...

    def side(self, mode: str) -> Side:
        """Opens the side ``dense`` or ``bm25``."""
        ...

    def index_to_filter(self, side: Side) -> Index | None:
        """Returns an index of a side that can search a part of the passages; None if its files are missing."""
        ...

    def get(self, ids: Iterable[str]) -> dict[str, Passage]:
        """Returns the passages with these ids, without those that are missing."""
        ...

    def fields(self, kinds: Mapping[str, str]) -> PassageFields:
        """Reads the fields by which passages can be filtered."""
        ...
