"""Vectors in the form that indexes read: in blocks, checked, never the whole corpus at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpr.core.errors import InputError
from dpr.core.logs import counted
from dpr.formats.arrays import ArraySource as ArraySource
from dpr.indexer.ranking import decode_ids

_WIDE_VALUES = 1 << 21  # 16 MB of float64


class VectorSource(Protocol):
    """Vectors that are read in pieces, or by their rows, from a shard on disk or from arrays."""

    @property
    def num_vectors(self) -> int: ...

    @property
    def dimension(self) -> int: ...

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields ids (n,) of fixed-width bytes and vectors (n, D)."""
        ...

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids and vectors (n, D) at these rows, which ascend."""
        ...


@dataclass(frozen=True)
class PrefixedSource:
    """A source whose ids get a prefix if they lack it, as passage sources with an ``id_prefix`` do in DPR."""

    source: VectorSource
    prefix: str

    @property
    def num_vectors(self) -> int:
        return self.source.num_vectors

    @property
    def dimension(self) -> int:
        return self.source.dimension

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for ids, vectors in self.source.chunks():
            yield self._prefixed(ids), vectors

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ids, vectors = self.source.take(rows)
        return self._prefixed(ids), vectors

    def _prefixed(self, ids: np.ndarray) -> np.ndarray:
        prefix = self.prefix.encode()
        return np.where(~np.char.startswith(ids, prefix), np.char.add(prefix, ids), ids)


def take_rows(sources: Sequence[VectorSource], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids and float32 vectors (n, D) at these rows, n at least 1, which ascend. Rows are counted
    through the sources in order."""
    pieces = []
    start = 0
    for source in sources:
        low, high = np.searchsorted(rows, [start, start + source.num_vectors])
        if low < high:
            ids, vectors = source.take(rows[low:high] - start)
            pieces.append((ids, np.asarray(vectors, dtype=np.float32)))
        start += source.num_vectors
    return _joined(pieces)


def blocks(sources: Sequence[VectorSource], block_rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields ids and float32 vectors of all sources in order, at most ``block_rows`` at a time.

    Small chunks are joined; large ones are not copied and may be read-only memory maps.
    """
    held: list[tuple[np.ndarray, np.ndarray]] = []
    chunks = (chunk for source in sources for chunk in source.chunks())
    total = sum(source.num_vectors for source in sources)
    for ids, vectors in counted(
        chunks, "reading vectors", total, unit="vectors", size_of=lambda chunk: len(chunk[0])
    ):
        for start in range(0, len(vectors), block_rows):
            part = slice(start, start + block_rows)
            if held and sum(len(taken) for taken, _ in held) + len(ids[part]) > block_rows:
                yield _joined(held)
                held = []
            held.append((ids[part], np.ascontiguousarray(vectors[part], dtype=np.float32)))
    if held:
        yield _joined(held)


def _joined(pieces: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    if len(pieces) == 1:
        return pieces[0]
    ids, vectors = zip(*pieces, strict=True)
    return np.concatenate(ids), np.concatenate(vectors)


def as_tensor(vectors: np.ndarray) -> Tensor:
    """Returns the same memory as a tensor, which must not be written to. torch has no read-only tensors and
    warns about read-only arrays."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(vectors)


def common_dimension(sources: Sequence[VectorSource]) -> int:
    """Returns the dimension of all sources. Raises InputError if they differ or there are none."""
    dimensions = {source.dimension for source in sources}
    if len(dimensions) != 1:
        raise InputError(
            f"vectors of dimensions {sorted(dimensions)}" if dimensions else "no vectors to search",
            expected="one dimension",
        )
    return dimensions.pop()


def check_finite(ids: np.ndarray, vectors: np.ndarray) -> None:
    """Raises InputError, which names the first id, if a vector contains NaN or infinity."""
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        first = decode_ids(ids[~finite][:1])[0]
        raise InputError(
            f"{int((~finite).sum())} vectors hold NaN or infinity, the first is that of {first!r}",
            hint="embed again with an intact model",
        )


def refuse_overflow(bound: float) -> None:
    """Raises InputError if numbers up to ``bound`` overflow float32, because overflowed scores cannot be
    ordered."""
    if not bound < float(np.finfo(np.float32).max):
        raise InputError(
            "the product of a query and a passage vector is too large for float32",
            hint="the model has diverged",
        )


def check_queries(queries: np.ndarray, dimension: int) -> np.ndarray:
    """Returns query vectors as (Q, D) contiguous float32.

    Raises:
        InputError: the width differs from that of the index, or a vector contains NaN or infinity.
    """
    array = np.ascontiguousarray(queries, dtype=np.float32)
    if array.size == 0:
        return np.zeros((0, dimension), dtype=np.float32)
    if array.ndim != 2 or array.shape[1] != dimension:
        raise InputError(
            f"query vectors of shape {array.shape}",
            expected=f"(questions, {dimension})",
            hint="questions and passages need the same model",
        )
    check_finite(np.char.add(b"question ", np.arange(len(array)).astype(bytes)), array)
    return array


def paired_dots(
    queries: np.ndarray, rows: np.ndarray, vectors: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """Returns the dot products of ``queries[rows]`` with ``vectors[columns]``, pair by pair, (n,) float32.

    Each is summed in float64 along its row alone. So a pair has the same score bit for bit, whatever stands
    beside it, which matrix products do not guarantee.
    """
    if not len(rows):
        return np.empty(0, dtype=np.float32)
    wide_queries = torch.from_numpy(queries.astype(np.float64))
    # each vector is then widened once, no pair copied
    places, numbers = np.unique(columns * len(queries) + rows, return_inverse=True)
    columns, rows = np.divmod(places, len(queries))
    first = np.flatnonzero(np.diff(columns, prepend=-1))  # where the pairs of a vector begin
    scores = np.empty(len(rows), dtype=np.float32)
    at_once = max(1, _WIDE_VALUES // max(queries.shape[1], 1))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        for start in range(0, len(first), at_once):
            starts = np.append(first, len(rows))[start : start + at_once + 1]
            part = slice(starts[0], starts[-1])
            wide = torch.from_numpy(vectors[columns[starts[:-1]]].astype(np.float64))
            wanted = torch.sparse_csr_tensor(
                torch.from_numpy(starts - starts[0]),
                torch.from_numpy(rows[part]),
                torch.zeros(int(starts[-1] - starts[0]), dtype=torch.float64),
                (len(wide), len(queries)),
                check_invariants=False,
            )
            products = torch.sparse.sampled_addmm(wanted, wide, wide_queries.T, beta=0.0)
            scores[part] = products.values().numpy()
    return scores[numbers]
