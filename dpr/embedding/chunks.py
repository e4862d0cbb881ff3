"""Chunks on their way: read and tokenised one ahead of the model, written one behind it, each in a thread of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from dpr.core.batch import TokenBatch
from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.embedding.source import PassageSource
from dpr.formats.vector_shards import VectorShardWriter


@dataclass(frozen=True, slots=True)
class Chunk:
    number: int
    ids: list[str]
    tokens: TokenBatch
    empty_ids: list[str]


def chunk_rows(rows: range, number: int, chunk_size: int) -> range:
    """The rows of a shard's chunk."""
    return rows[number * chunk_size : (number + 1) * chunk_size]


def prepared_chunks(
    source: PassageSource, rows: range, numbers: list[int], chunk_size: int, tokenize: Callable[[list[Passage]], TokenBatch]
) -> Iterator[Chunk]:
    """Chunks, read and tokenised one ahead of the model in a thread (both the tokenizer and the model release the interpreter).

    Raises:
        InputError: a row is bad, or rows have gone since they were counted.
    """
    pending = _read_chunks(source, rows, numbers, chunk_size)

    def prepare() -> Chunk | None:
        number, passages = next(pending, (-1, []))
        if number < 0:
            return None
        empty = [str(passage.id) for passage in passages if not passage.text.strip()]
        tokens = tokenize([source.as_encoded(passage) for passage in passages])
        return Chunk(number, [str(passage.id) for passage in passages], tokens, empty)

    with ThreadPoolExecutor(1, thread_name_prefix="tokenize") as pool:
        following = pool.submit(prepare)
        while (chunk := following.result()) is not None:
            following = pool.submit(prepare)
            yield chunk


class WriteBehind:
    """Writes chunks in a thread, at most one at a time, while the next is encoded.

    What a write raises is raised by the next ``write`` or ``wait``. Leaving the block lets a write that was begun come to its end.
    """

    def __init__(self, writer: VectorShardWriter) -> None:
        self._writer = writer
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._pending: Future[None] | None = None

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def write(self, number: int, ids: list[str], vectors: np.ndarray) -> None:
        """Begins to write a chunk, once the one before it is written."""
        self.wait()
        self._pending = self._pool.submit(self._writer.write_chunk, number, ids, vectors)

    def wait(self) -> None:
        """Returns when nothing is left to write."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def _read_chunks(source: PassageSource, rows: range, numbers: list[int], chunk_size: int) -> Iterator[tuple[int, list[Passage]]]:
    """The passages of the given chunks, in one pass over the file that ends with the last of them."""
    if not numbers:
        return
    last = chunk_rows(rows, numbers[-1], chunk_size).stop
    passages = source.read(chunk_rows(rows, numbers[0], chunk_size).start, last)
    wanted = set(numbers)
    for number in range(numbers[0], numbers[-1] + 1):
        chunk = list(itertools.islice(passages, len(chunk_rows(rows, number, chunk_size))))
        if number in wanted:
            if len(chunk) != len(chunk_rows(rows, number, chunk_size)):
                raise InputError("has fewer rows than a moment ago", file=source.file, hint="do not change a corpus while it is embedded")
            yield number, chunk
