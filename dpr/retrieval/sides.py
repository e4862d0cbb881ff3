"""The sides of a search, by words and by vectors (``dpr.retrieval.dense``), the fusion of their rankings, and what
opens them. A search by words imports no model."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from dpr.core.errors import ConfigError
from dpr.core.records import text_sha256
from dpr.data.text import normalize_question
from dpr.embedding.source import PassageSource
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.living_words import LivingWords
from dpr.indexer.ranking import Ranking, fuse_linear, to_rankings
from dpr.indexer.registry import Index, IndexChoice, index_class
from dpr.indexer.saved import IndexStore
from dpr.indexer.settings import DEFAULT_WEIGHT, KINDS
from dpr.retrieval.passages import lexical_texts
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


def reads_texts(kind: str) -> bool:
    """True if an index of this kind is over words. Does not import built-in classes."""
    return kind == "bm25" if kind in KINDS else index_class(kind).reads == "texts"


def index_choice(config: IndexerConfig) -> IndexChoice:
    """Returns the index that the settings name. The settings of a built-in kind stand beside ``kind``, those
    of a user-defined class in ``options``."""
    if config.kind not in KINDS:
        return IndexChoice.of(config.kind, config.options, key="indexer.options.")
    own = config.part(KINDS[config.kind].settings)
    return IndexChoice.of(config.kind, vars(own), key="indexer.")


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


def living(side: Any, sources: Sequence[PassageSource]) -> Any:
    """Returns the index of an open side of ``sources``, in a form that can change.

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
                index = Bm25Index.build(lexical_texts(sources), index.settings)
            side.index = LivingWords(index)
        else:
            raise ConfigError(
                "this kind of index of words cannot change; build one of the new passages:"
                " Retriever.build(model, passages, folder=...)"
            )
    return side.index


def short_hash(*parts: str) -> str:
    """Returns the identity of an index's input."""
    return text_sha256("\n".join(parts))[:32]
