"""Vectors as the indexes read them: in blocks, checked, never the whole corpus at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpr.core.errors import InputError
from dpr.indexer.ranking import decode_ids


class VectorSource(Protocol):
    """Vectors that are read in pieces: a shard on disk, or arrays."""

    @property
    def num_vectors(self) -> int: ...

    @property
    def dimension(self) -> int: ...

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields ids (n,) of fixed-width bytes and vectors (n, D)."""
        ...


@dataclass(frozen=True)
class ArraySource:
    """A source made of arrays in memory; ``vectors`` (n, D) float32 or float16."""

    ids: np.ndarray
    vectors: np.ndarray

    @property
    def num_vectors(self) -> int:
        return int(self.vectors.shape[0])

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1])

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield self.ids, self.vectors


@dataclass(frozen=True)
class PrefixedSource:
    """A source whose ids get a prefix where they lack it, as DPR does for passage sources with an ``id_prefix``."""

    source: VectorSource
    prefix: str

    @property
    def num_vectors(self) -> int:
        return self.source.num_vectors

    @property
    def dimension(self) -> int:
        return self.source.dimension

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        prefix = self.prefix.encode()
        for ids, vectors in self.source.chunks():
            lacking = ~np.char.startswith(ids, prefix)
            yield np.where(lacking, np.char.add(prefix, ids), ids), vectors


def blocks(sources: Iterable[VectorSource], block_rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields ids and float32 vectors of all sources in order, at most ``block_rows`` at a time; small chunks are joined.

    Raises:
        InputError: a vector holds NaN or infinity; names the first id.
    """
    held: list[tuple[np.ndarray, np.ndarray]] = []
    num_held = 0
    for ids, vectors in _pieces(sources, block_rows):
        if held and num_held + len(ids) > block_rows:
            yield _joined(held)
            held, num_held = [], 0
        held.append((ids, _checked_copy(ids, vectors)))
        num_held += len(ids)
    if held:
        yield _joined(held)


def _pieces(sources: Iterable[VectorSource], rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for source in sources:
        for ids, vectors in source.chunks():
            for start in range(0, vectors.shape[0], rows):
                yield ids[start : start + rows], vectors[start : start + rows]


def _joined(pieces: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate([ids for ids, _ in pieces]), np.concatenate([vectors for _, vectors in pieces])


def _checked_copy(ids: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    block = np.array(vectors, dtype=np.float32, order="C")
    finite = np.isfinite(block).all(axis=1)
    if not finite.all():
        first = decode_ids(ids[~finite][:1])[0]
        raise InputError(
            f"{int((~finite).sum())} vectors hold NaN or infinity, the first is that of id {first!r}",
            hint="embed the corpus again with a sound model",
        )
    return block


def check_queries(queries: np.ndarray, dimension: int) -> np.ndarray:
    """Query vectors as (Q, D) contiguous float32.

    Raises:
        InputError: another width than the index has, or a vector that holds NaN or infinity.
    """
    array = np.ascontiguousarray(queries, dtype=np.float32)
    if array.size == 0:
        return np.zeros((0, dimension), dtype=np.float32)
    if array.ndim != 2 or array.shape[1] != dimension:
        raise InputError(
            f"query vectors of shape {array.shape}", expected=f"(questions, {dimension})", hint="questions and passages need the same model"
        )
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        raise InputError(f"{int((~finite).sum())} query vectors hold NaN or infinity, the first is row {int(np.argmin(finite))}")
    return array


def paired_dots(
    queries: np.ndarray, rows: np.ndarray, vectors: np.ndarray, columns: np.ndarray, *, pairs_at_once: int = 8192
) -> np.ndarray:
    """Dot products of ``queries[rows]`` with ``vectors[columns]``, pair by pair, (n,) float32.

    Summed in float64 along each row alone, so that a pair has the same score bit for bit whatever stands beside it; matrix products do not.
    """
    scores = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), pairs_at_once):
        part = slice(start, start + pairs_at_once)
        scores[part] = (queries[rows[part]].astype(np.float64) * vectors[columns[part]]).sum(axis=1)
    return scores
