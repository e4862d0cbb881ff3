"""A corpus that is searched, and its changes. ``StoredSearch`` has it in files, ``MemorySearch`` in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.records import Passage
from dpr.embedding.source import PassageSource
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.living_words import LivingWords
from dpr.indexer.registry import Index
from dpr.retrieval.passages import Kinds, lexical_texts, note_kinds
from dpr.retrieval.sides import Fusion, Side, WordSide


class Change(NamedTuple):
    """Passages that go and passages that come, one after the other, with the vectors (n, D) of the latter."""

    gone: Sequence[Passage]
    added: Sequence[Passage]
    vectors: np.ndarray | None


@dataclass(kw_only=True)
class Search:
    """A corpus, on disk or in memory, its changes, and the ways to search it. ``dpr.Retriever`` stands on its
    subclasses, which also have ``mode``, the search mode that is used if none is named; ``modes``, those for which
    all files exist; and ``side``, which opens ``dense`` or ``bm25``."""

    added: dict[str, Passage] = field(default_factory=dict)
    """Passages that were added to the corpus."""
    gone: set[str] = field(default_factory=set)
    """Ids of passages of the corpus that were deleted or replaced."""
    num_added: int = 0
    """Number of passages that were ever added."""
    num_stored: int = 0
    """Number of passages of the corpus, known when a side was opened."""
    fusion: Fusion = field(default_factory=Fusion)
    """Fusion of a hybrid."""

    @property
    def kind(self) -> str:
        """Returns the kind of the index over vectors."""
        return "exact"

    @property
    def sources(self) -> Sequence[PassageSource]:
        """Returns the files of the passages."""
        return ()

    def query_text(self, question: str) -> str:
        """Returns the question in the form that sides get."""
        return question

    def index_to_filter(self, side: Side) -> Index | None:
        """Returns an index of a side that can search a part of the passages; None if its files are missing."""
        return side.index

    def stored(self, ids: Iterable[str]) -> dict[str, Passage]:
        """Returns the passages of the corpus with these ids; missing ones are left out."""
        return {}

    def get(self, ids: Iterable[str]) -> dict[str, Passage]:
        """Returns the passages with these ids; missing ones are left out."""
        wanted = list(ids)
        found = self.stored([key for key in wanted if key not in self.gone and key not in self.added])
        return found | {key: self.added[key] for key in wanted if key in self.added}

    def __iter__(self) -> Iterator[Passage]:
        return iter(list(self.added.values()))

    @cached_property
    def kinds(self) -> Kinds:
        """Returns the kinds of the fields of all passages."""
        kinds: Kinds = {}
        note_kinds(kinds, self)
        return kinds

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Keeps other processes from changing the passages. Raises DprError if they cannot be changed."""
        yield

    def as_encoded(self, passage: Passage) -> Passage:
        """Returns a new passage in the form that the model gets."""
        return passage

    def has_news(self) -> bool:
        """Returns whether another process has changed the passages."""
        return False

    def restart(self) -> bool:
        """Forgets all changes if they have to be taken up from the first one. Returns whether that is so."""
        return False

    def news(self) -> Iterable[Change]:
        """Returns the changes of other processes, each to be applied before the next is taken."""
        return ()

    def store(self, change: Change) -> None:
        """Writes a change to the disk, if the passages are there."""
        return

    def apply(self, change: Change) -> None:
        """Takes up a change, except in the sides that are open."""
        for passage in change.gone:
            if self.added.pop(str(passage.id), None) is None:
                self.gone.add(str(passage.id))
        self.added |= {str(passage.id): passage for passage in change.added}
        self.num_added += len(change.added)
        if "kinds" in vars(self):
            note_kinds(self.kinds, change.added)


def living(side: Any, search: Search) -> Any:
    """Returns the index of an open side, in a form that can change.

    Raises:
        ConfigError: it cannot change.
    """
    index = side.index
    if not hasattr(index, "change"):
        if not isinstance(side, WordSide):
            from dpr.indexer.living_vectors import LivingVectors

            side.index = LivingVectors(index, side.model.dimension, device=side.model.device)
        elif isinstance(index, Bm25Index):
            if index.frequencies is None:  # an earlier version saved it without
                index = Bm25Index.build(lexical_texts(search.sources), index.settings)
            side.index = LivingWords(index)
        else:
            raise ConfigError(
                "this kind of index of words cannot change; build one of the new passages:"
                " Retriever.build(model, passages, folder=...)"
            )
    return side.index
