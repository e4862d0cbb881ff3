"""The sides of a search, by words and by vectors (``dpr.retrieval.dense``), the fusion of their rankings, and what
opens them. A search by words imports no model."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from dpr.core.errors import ConfigError
from dpr.core.records import Passage, text_sha256
from dpr.data.text import normalize_question
from dpr.embedding.source import PassageSource
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.living_words import LivingWords
from dpr.indexer.ranking import Ranking, fuse_linear, to_rankings
from dpr.indexer.registry import Index, IndexChoice, index_class
from dpr.indexer.saved import IndexStore
from dpr.indexer.settings import DEFAULT_WEIGHT, KINDS
from dpr.retrieval.passages import Change, Kinds, lexical_texts, note_kinds
from dpr.retrieval.settings import IndexerConfig


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


def reads_texts(kind: str) -> bool:
    """True if an index of this kind is over words. Does not import built-in classes."""
    return kind == "bm25" if kind in KINDS else index_class(kind).reads == "texts"


def index_choice(config: IndexerConfig) -> IndexChoice:
    """Returns the index that the settings name. The settings of a built-in kind stand beside ``kind``, those
    of a user-defined class in ``options``."""
    if config.kind not in KINDS:
        return IndexChoice.of(config.kind, config.options, key="indexer.options.")
    names = [item.name for item in fields(KINDS[config.kind].settings)]
    return IndexChoice.of(config.kind, {name: getattr(config, name) for name in names}, key="indexer.")


def open_words(
    config: IndexerConfig, sources: Sequence[PassageSource], path: str | None, index_path: str | None
) -> WordSide:
    """Opens the side of words. Beside vectors, whose index is then at ``index_path``, it has an index of BM25 of
    its own at ``path``."""
    if reads_texts(config.kind):
        path = path or index_path
    else:
        config = replace(config, kind="bm25")
    return WordSide(open_text_index(index_choice(config), sources, path))


def open_text_index(choice: IndexChoice, sources: Sequence[PassageSource], path: str | None) -> Index:
    """Opens the index of the corpus's words from ``path`` if it exists; else builds it and saves it there."""
    if not sources:
        raise ConfigError(
            f"ctx_datasets is not set; indexer={choice.kind} searches texts, e.g. ctx_datasets=[corpus.tsv]"
        )
    store = IndexStore(choice)
    if path:
        # Words are searched without the prefix of texts that are embedded.
        searched = [replace(source, passage_prefix="").identity() for source in sources]
        made_of = short_hash(*(json.dumps(one, sort_keys=True) for one in searched))
        store = IndexStore(choice, Path(path), {"corpus": made_of})
    return store.load_or_build(lambda: lexical_texts(sources))


def short_hash(*parts: str) -> str:
    """Returns the identity of an index's input."""
    return text_sha256("\n".join(parts))[:32]
