"""One pass over a corpus with the present model: each chunk is encoded, compared with all questions, and
dropped.

Chunk k belongs to rank k mod W. A rank keeps the best passages of each question that it has seen
(``RunningSearch``: products nominate, float64 decides), and the ranks' lists are merged at the end. So the
result has the same bits for any number of ranks, and memory grows with the questions, not with the corpus.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from dpr.core.batch import TokenBatch
from dpr.core.distributed import current_ranks, gather_rows, largest_over_ranks, sum_over_ranks
from dpr.core.errors import LostRankError
from dpr.embedding.corpus_tokens import CorpusTokens, TokenChunk
from dpr.embedding.encode import encode_tokens, usual_tokens
from dpr.indexer.exact import RunningSearch
from dpr.indexer.ranking import RunningTopK
from dpr.indexer.vectors import check_finite
from dpr.models.biencoder import BiEncoder

_QUESTION_ROWS = 1024
BLOCK_ROWS = 8192
_MERGED_ROWS = 4096
_NO_TOKENS = TokenBatch.from_lists([])


@dataclass(frozen=True)
class QuerySet:
    """Questions to search the corpus for; ``tokens`` gives those of a range of them."""

    count: int
    tokens: Callable[[range], TokenBatch]
    depth: int


@dataclass
class Seconds:
    """What a pass took on this rank."""

    encoding: float = 0.0
    searching: float = 0.0


class CorpusPass:
    """Searches ``corpus`` with ``model``; all ranks call it together."""

    def __init__(self, model: BiEncoder, corpus: CorpusTokens, *, precision: str = "fp32") -> None:
        self._model, self._corpus, self._precision = model, corpus, precision
        self.seconds = Seconds()

    def run(self, asked: QuerySet, *, num_chunks: int | None = None) -> RunningTopK:
        """What is found for the questions, on rank 0, in the first ``num_chunks`` chunks, in all of them by
        default.

        Raises:
            InputError: the corpus has changed or cannot be read; a vector is NaN or infinite.
            LostRankError: that happened on another rank.
        """
        search = _Search(asked, self._vectors(asked), str(self._model.device))
        count = self._corpus.num_chunks if num_chunks is None else min(num_chunks, self._corpus.num_chunks)
        for chunk, vectors in self._encoded(count):
            start = time.perf_counter()
            search.add(chunk, vectors)
            self.seconds.searching += time.perf_counter() - start
        start = time.perf_counter()
        joined = search.joined()
        self.seconds.searching += time.perf_counter() - start
        return joined

    def _encode(self, tokens: TokenBatch, encoder_type: str) -> np.ndarray:
        budget = usual_tokens(self._model.device)
        return encode_tokens(
            self._model, tokens, encoder_type=encoder_type, batch_tokens=budget, precision=self._precision
        )

    def _vectors(self, asked: QuerySet) -> np.ndarray:
        """Vectors (Q, D) of all questions, on every rank; blocks of questions are dealt out, so that they do
        not depend on the ranks."""
        start, ranks = time.perf_counter(), current_ranks()
        vectors = np.zeros((asked.count, self._model.dimension), dtype=np.float32)
        blocks = [
            range(first, min(first + _QUESTION_ROWS, asked.count))
            for first in range(0, asked.count, _QUESTION_ROWS)
        ]
        for turn in range(-(-len(blocks) // ranks.world_size)):
            rows = dict(enumerate(blocks)).get(turn * ranks.world_size + ranks.rank, range(0))
            vectors[rows.start : rows.stop] = self._encode(
                asked.tokens(rows) if rows else _NO_TOKENS, "question"
            )
        vectors = sum_over_ranks(torch.from_numpy(vectors)).numpy()
        self.seconds.encoding += time.perf_counter() - start
        check_finite(np.arange(len(vectors)).astype(bytes), vectors)
        return vectors

    def _encoded(self, count: int) -> Iterator[tuple[TokenChunk, np.ndarray]]:
        """This rank's chunks with their vectors. The ranks meet after every chunk, so that one that fails is
        noticed soon."""
        ranks = current_ranks()
        mine = list(range(ranks.rank, count, ranks.world_size))
        chunks = self._corpus.read(mine)
        for turn in range(-(-count // ranks.world_size)):
            start, failure = time.perf_counter(), None
            chunk: TokenChunk | None = None
            try:
                chunk = next(chunks) if turn < len(mine) else None
            except (
                Exception
            ) as error:  # told to the other ranks first, which would wait for this one for ever
                failure = error
            if largest_over_ranks(int(failure is not None)):
                raise failure or LostRankError(
                    "another rank stopped while it read the corpus; its message says why"
                )
            # a sharded model encodes on all ranks together
            vectors = self._encode(_NO_TOKENS if chunk is None else chunk.tokens, "ctx")
            self.seconds.encoding += time.perf_counter() - start
            if chunk is not None:
                yield chunk, vectors


class _Search:
    """The questions in a pass. Chunks are joined into blocks, as a product of many rows is the faster one."""

    def __init__(self, asked: QuerySet, vectors: np.ndarray, device: str) -> None:
        self._vectors = vectors
        self._running = RunningSearch(vectors, asked.depth, device=device, block_rows=BLOCK_ROWS)
        self._held: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, chunk: TokenChunk, vectors: np.ndarray) -> None:
        if self._held and sum(len(ids) for ids, _ in self._held) + len(chunk.ids) > BLOCK_ROWS:
            self._search_held()
        self._held.append((chunk.ids, vectors))

    def _search_held(self) -> None:
        if self._held:
            ids, vectors = zip(*self._held, strict=True)
            self._running.add(np.concatenate(ids), np.concatenate(vectors))
            self._held = []

    def joined(self) -> RunningTopK:
        """What all ranks have found."""
        self._search_held()
        return merged_on_main(self._running.best, len(self._vectors))


def merged_on_main(best: RunningTopK, num_questions: int) -> RunningTopK:
    """The best of all ranks on rank 0, elsewhere nothing more than this rank's; a list travels as 4 bytes and
    an id a passage."""
    ranks = current_ranks()
    if ranks.world_size == 1:
        return best
    width = largest_over_ranks(best.part(slice(0, 0))[1].dtype.itemsize)
    for first in range(0, num_questions, _MERGED_ROWS):
        scores, ids, counts = best.part(slice(first, first + _MERGED_ROWS))
        text = torch.from_numpy(ids.astype(f"S{width}").view(np.uint8).reshape(*ids.shape, width).copy())
        sent = torch.from_numpy(scores.copy()), text, torch.from_numpy(counts.copy())
        parts = zip(*(gather_rows(part[None]).unbind(0) for part in sent), strict=True)
        for rank, (others, letters, held) in enumerate(parts):
            if ranks.is_main and rank:
                keys = np.ascontiguousarray(letters.numpy()).view(f"S{width}")[..., 0]
                best.add_part(first, others.numpy(), keys, held.numpy())
    return best
