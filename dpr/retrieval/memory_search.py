"""A search of passages in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.logs import counted
from dpr.core.records import Passage
from dpr.formats.passage_metadata import checked_field
from dpr.formats.passage_records import field_of
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.ranking import encode_ids
from dpr.indexer.registry import Index, IndexTexts
from dpr.retrieval.passages import Kinds, PassageFields, Passages, records_of
from dpr.retrieval.settings import SEARCH_MODES
from dpr.retrieval.sides import Fusion, Side, WordSide

if TYPE_CHECKING:
    from dpr.indexer.vectors import ArraySource
    from dpr.models.biencoder import BiEncoder

_ENCODED_AT_ONCE = 8192  # as by dpr embed, so that vectors in memory and in files have the same bits


@dataclass
class MemorySearch:
    """An exact search of passages and vectors in memory (``Search``)."""

    model: BiEncoder | None
    passages: dict[str, Passage] = field(default_factory=dict)
    _records: list[Mapping[str, Any]] = field(default_factory=list)
    _vectors: list[ArraySource] = field(default_factory=list)
    _kinds: Kinds = field(default_factory=dict)
    fusion: Fusion = field(default_factory=Fusion)
    files: Sequence[Path] = ()

    @property
    def mode(self) -> str:
        return "bm25" if self.model is None else "dense"

    @property
    def modes(self) -> tuple[str, ...]:
        return ("bm25",) if self.model is None else SEARCH_MODES

    def query_text(self, question: str) -> str:
        return question

    def add(self, passages: Passages) -> None:
        """Embeds and adds passages, all of them or none."""
        kinds = dict(self._kinds)
        made = list(records_of(passages, kinds, known=len(self.passages)))
        if not made:
            raise InputError("there are no passages")
        if again := next((passage.id for passage, _ in made if passage.id in self.passages), None):
            raise InputError(f"the id {again!r} is already in the corpus", expected="new ids")
        if self.model is not None:
            from dpr.embedding.encode import (
                TokenBudget,
                default_batch_tokens,
                encode_within_memory,
                tokenize_passages,
            )
            from dpr.indexer.vectors import ArraySource

            texts = [passage for passage, _ in made]
            budget = TokenBudget(default_batch_tokens(self.model.device))
            vectors = []
            for start in counted(range(0, len(texts), _ENCODED_AT_ONCE), "embedding"):
                tokens = tokenize_passages(self.model.tensorizer, texts[start : start + _ENCODED_AT_ONCE])
                vectors.append(encode_within_memory(self.model, tokens, budget))
            ids = encode_ids([str(passage.id) for passage in texts])
            self._vectors.append(ArraySource(ids, np.concatenate(vectors)))
        self.passages |= {str(passage.id): passage for passage, _ in made}
        self._records += [record for _, record in made]
        self._kinds = kinds

    def side(self, mode: str) -> Side:
        if mode == "bm25":
            texts = (f"{passage.title} {passage.text}" for passage in self.passages.values())
            return WordSide(Bm25Index.build(IndexTexts(list(self.passages), texts)))
        from dpr.indexer.exact import ExactIndex
        from dpr.retrieval.dense import DenseSide

        assert self.model is not None
        return DenseSide(self.model, ExactIndex(self._vectors, device=self.model.device))

    def index_to_filter(self, side: Side) -> Index | None:
        return side.index

    def get(self, ids: Iterable[str]) -> dict[str, Passage]:
        return {key: self.passages[key] for key in ids if key in self.passages}

    def fields(self, kinds: Mapping[str, str]) -> PassageFields:
        rows = []
        for number, record in enumerate(self._records):
            try:
                row = [checked_field(name, kind, field_of(record, name)) for name, kind in kinds.items()]
            except ValueError as error:
                raise InputError(f"passage {number}: {error}") from None
            rows.append(tuple(row))
        return PassageFields(encode_ids(list(self.passages)), kinds, rows)
