"""Chunks of a shard, read and tokenised one ahead of the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dpr.core.batch import TokenBatch
from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.embedding.source import PassageSource, StoredSource


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
    source: PassageSource,
    rows: range,
    numbers: list[int],
    chunk_size: int,
    tokenize: Callable[[Sequence[Passage]], TokenBatch],
) -> Iterator[Chunk]:
    """Chunks, read and tokenised one ahead of the model in a thread (both the tokenizer and the model release
    the interpreter).

    Raises:
        InputError: a row is bad, or the file has fewer rows than when they were counted.
    """
    chunks = _chunks(source, rows, numbers, chunk_size, tokenize)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenize") as pool:
        following = pool.submit(next, chunks, None)
        while (chunk := following.result()) is not None:
            following = pool.submit(next, chunks, None)
            yield chunk


def _chunks(
    source: PassageSource,
    rows: range,
    numbers: list[int],
    chunk_size: int,
    tokenize: Callable[[Sequence[Passage]], TokenBatch],
) -> Iterator[Chunk]:
    """The given chunks in one pass over the file, which ends with the last of them; a stored source passes
    over the chunks between them."""
    passages: Iterator[Passage] = iter(())
    end = -1
    for number in numbers:
        wanted = chunk_rows(rows, number, chunk_size)
        if end < 0 or (end < wanted.start and isinstance(source, StoredSource)):
            passages = source.read(wanted.start, chunk_rows(rows, numbers[-1], chunk_size).stop)
            end = wanted.start
        chunk = list(itertools.islice(passages, wanted.start - end, wanted.stop - end))
        if len(chunk) != len(wanted):
            raise InputError(
                "has fewer rows than before",
                file=source.file,
                hint="do not change a corpus while it is embedded",
            )
        end = wanted.stop
        empty = [str(passage.id) for passage in chunk if not passage.text.strip()]
        yield Chunk(
            number,
            [str(passage.id) for passage in chunk],
            tokenize([source.as_encoded(passage) for passage in chunk]),
            empty,
        )
