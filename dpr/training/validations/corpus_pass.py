"""One pass over a corpus with the present model: each chunk is encoded, compared with all questions, and
dropped.

Chunk k belongs to rank k mod W. A rank keeps the best passages of each question that it has seen
(``RunningSearch``: products nominate, float64 decides), and the ranks' lists are merged at the end. So the
result has the same bits for any number of ranks, and memory grows with the questions, not with the corpus.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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


def search_corpus(
    model: BiEncoder,
    corpus: CorpusTokens,
    asked: QuerySet,
    *,
    precision: str = "fp32",
) -> tuple[RunningTopK, Seconds]:
    """What is found for the questions, on rank 0. All ranks call it together.

    Raises:
        InputError: the corpus has changed or cannot be read; a vector is NaN or infinite.
        LostRankError: that happened on another rank.
    """
    ranks = current_ranks()
    budget = usual_tokens(model.device)
    seconds = Seconds()

    def encoded(tokens: TokenBatch, encoder_type: str) -> np.ndarray:
        return encode_tokens(
            model, tokens, encoder_type=encoder_type, batch_tokens=budget, precision=precision
        )

    # Vectors (Q, D) of all questions, on every rank; blocks of questions are dealt out, so that they do not depend
    # on the ranks.
    start = time.perf_counter()
    questions = np.zeros((asked.count, model.dimension), dtype=np.float32)
    firsts = range(0, asked.count, _QUESTION_ROWS)
    for turn in range(-(-len(firsts) // ranks.world_size)):
        block = turn * ranks.world_size + ranks.rank
        rows = range(0)
        if block < len(firsts):
            rows = range(firsts[block], min(firsts[block] + _QUESTION_ROWS, asked.count))
        questions[rows.start : rows.stop] = encoded(asked.tokens(rows) if rows else _NO_TOKENS, "question")
    questions = sum_over_ranks(torch.from_numpy(questions)).numpy()
    seconds.encoding += time.perf_counter() - start
    check_finite(np.arange(len(questions)).astype(bytes), questions)

    # Chunks are joined into blocks, as a product of many rows is the faster one.
    running = RunningSearch(questions, asked.depth, device=str(model.device), block_rows=BLOCK_ROWS)
    held: list[tuple[np.ndarray, np.ndarray]] = []

    def search_held() -> None:
        start = time.perf_counter()
        if held:
            ids, vectors = zip(*held, strict=True)
            running.add(np.concatenate(ids), np.concatenate(vectors))
            held.clear()
        seconds.searching += time.perf_counter() - start

    count = corpus.num_chunks
    mine = list(range(ranks.rank, count, ranks.world_size))
    chunks = corpus.read(mine)
    # The ranks meet after every chunk, so that one that fails is noticed soon.
    for turn in range(-(-count // ranks.world_size)):
        start = time.perf_counter()
        failure = None
        chunk: TokenChunk | None = None
        try:
            chunk = next(chunks) if turn < len(mine) else None
        except Exception as error:  # told to the other ranks first, which would wait for this one for ever
            failure = error
        if largest_over_ranks(int(failure is not None)):
            raise failure or LostRankError(
                "another rank stopped while it read the corpus; its message says why"
            )
        # a sharded model encodes on all ranks together
        vectors = encoded(_NO_TOKENS if chunk is None else chunk.tokens, "ctx")
        seconds.encoding += time.perf_counter() - start
        if chunk is not None:
            if held and sum(len(ids) for ids, _ in held) + len(chunk.ids) > BLOCK_ROWS:
                search_held()
            held.append((chunk.ids, vectors))
    search_held()

    start = time.perf_counter()
    best = merged_on_main(running.best, asked.count)
    seconds.searching += time.perf_counter() - start
    return best, seconds


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
