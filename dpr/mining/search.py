"""What mining asks of a way to search: prepared once, opened by every process, asked for a block of questions
at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dpr.formats.training_sets import TrainingSet
from dpr.indexer.ranking import Ranking
from dpr.mining.corpus import MiningCorpus


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


class Scorer(Finder, Protocol):
    """One that can also be a teacher: it scores passages whether it would find them or not."""

    def scores(
        self, rows: range, questions: Sequence[str], passages: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """The scores of given passages, by their rows in the corpus, for each question of a block."""
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


class ScoringSearch(Search, Protocol):
    """One whose finders can be teachers."""

    def prepare(
        self, train: TrainingSet, blocks: Sequence[range], corpus: MiningCorpus, work: Path
    ) -> Scorer: ...
