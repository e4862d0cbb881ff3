"""Searching a part of what an index holds: exactly, whatever share of the passages that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpr.core.errors import InputError
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import is_among
from dpr.indexer.registry import Index
from dpr.indexer.vectors import VectorSource


def can_filter(index: Index) -> bool:
    """Whether ``among`` takes it. Approximate indexes cannot: what they would miss depends on what is left
    out."""
    return isinstance(index, ExactIndex | Bm25Index)


def among(index: Index, ids: np.ndarray) -> Index:
    """A view of the passages with these ids (n,), fixed-width bytes, ascending and distinct; the index itself
    is not changed.

    It finds what a search of all passages would find with the others left out, with the same scores.

    Raises:
        InputError: an index of this kind cannot do that.
    """
    if isinstance(index, Bm25Index):
        return index.among(ids)
    if isinstance(index, ExactIndex):
        chosen = [_Chosen(source, ids) for source in index.sources]
        return ExactIndex(
            chosen, device=index.device, block_rows=index.block_rows, query_rows=index.query_rows
        )
    raise InputError(f"{type(index).__name__} cannot search a part of its passages", hint="use indexer=exact")


@dataclass(frozen=True)
class _Chosen:
    """The vectors of a source whose ids are among ``ids``, read chunk by chunk."""

    source: VectorSource
    ids: np.ndarray

    @cached_property
    def num_vectors(self) -> int:
        return sum(int(is_among(ids, self.ids).sum()) for ids, _ in self.source.chunks())

    @property
    def dimension(self) -> int:
        return self.source.dimension

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for ids, vectors in self.source.chunks():
            is_chosen = is_among(ids, self.ids)
            if is_chosen.any():
                yield ids[is_chosen], vectors[is_chosen]
