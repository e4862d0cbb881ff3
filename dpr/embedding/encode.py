"""Tokenising and encoding of passages, in the order given, in length-sorted batches of a token budget."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from dpr.core.batch import TokenBatch
from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage
from dpr.data.tensorizer import Tensorizer
from dpr.embedding.source import PassageSource, StoredSource
from dpr.formats.vector_shards import VectorShard
from dpr.models.several_devices import EncodingOptions
from dpr.models.towers import Towers

logger = get_logger(__name__)

_LISTED_PASSAGES = 512  # at a time: a token takes five times as much memory in a list as in a tensor

# CUDA's allocator raises a class of its own; the others are recognised by their messages.
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)


def default_batch_tokens(device: torch.device) -> int:
    """Returns the default number of tokens of a forward pass without gradient, enough to keep the device
    busy."""
    return 65536 if device.type == "cuda" else 4096


@dataclass(slots=True)
class TokenBudget:
    """Maximum number of tokens of one forward pass, padding included. It shrinks when memory runs out and
    stays small."""

    tokens: int


def tokenize_passages(tensorizer: Tensorizer, passages: Sequence[Passage]) -> TokenBatch:
    """Returns the tokens of passages. A passage with neither title nor text has the special tokens only."""
    parts = [
        passages[start : start + _LISTED_PASSAGES] for start in range(0, len(passages), _LISTED_PASSAGES)
    ] or [passages]
    return TokenBatch.join([TokenBatch.from_lists(tensorizer.passage_tokens(part)) for part in parts])


def encode_tokens(
    model: Towers,
    tokens: TokenBatch,
    *,
    encoder_type: str = "ctx",
    batch_tokens: int,
    batch_size: int = 0,
    precision: str = "fp32",
    on_batch: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Returns the vectors (N, D) float32 of N sequences, in the order given, by the model's ``question`` or
    ``ctx`` tower. Dropout is off.

    A forward pass takes at most ``batch_tokens`` tokens (padding included) and, unless 0, ``batch_size``
    sequences. The batches are a function of the lengths alone, so on one machine the same sequences always
    give the same bits.
    """
    options = EncodingOptions(encoder_type, batch_tokens, batch_size, precision)
    return options.vectors(model, tokens, on_batch).cpu().numpy()


def encode_within_memory(
    model: Towers,
    tokens: TokenBatch,
    budget: TokenBudget,
    *,
    encoder_type: str = "ctx",
    batch_size: int = 0,
    precision: str = "fp32",
    on_batch: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Encodes like ``encode_tokens``. If memory runs out, the budget is halved and all sequences are encoded
    again.

    So every result is made with one budget. It equals, bit for bit, that of ``encode_tokens`` with this
    budget.

    Raises:
        InputError: the longest sequence alone does not fit into memory.
    """
    asked = budget.tokens

    while True:
        try:
            vectors = encode_tokens(
                model,
                tokens,
                encoder_type=encoder_type,
                batch_tokens=budget.tokens,
                batch_size=batch_size,
                precision=precision,
                on_batch=on_batch,
            )
            break
        except RuntimeError as error:
            is_known = any(words in str(error) for words in _OUT_OF_MEMORY)
            if not is_known and not isinstance(error, torch.cuda.OutOfMemoryError):
                raise
        # The error, whose traceback holds tensors, is freed only here, after the block.
        longest = int(tokens.lengths.max())
        if budget.tokens <= longest:
            raise InputError(
                f"one sequence of {longest} tokens does not fit into the memory of device {model.device}",
                hint=(
                    "stop other programs on the device, or use precision=bf16, a larger device or a smaller"
                    " model"
                ),
            )
        most = min(batch_size or len(tokens.lengths), len(tokens.lengths)) * longest  # that fit a pass
        budget.tokens = max(min(budget.tokens, most) // 2, longest)
        if model.device.type == "cuda":
            torch.cuda.empty_cache()
    if budget.tokens < asked:
        message = (
            "out of memory with %d tokens per forward pass; continuing with %d. Set batch_tokens=%d to start"
            " there"
        )
        logger.warning(message, asked, budget.tokens, budget.tokens)
    return vectors


CHUNK_ROWS = 1024


class TokenChunk(NamedTuple):
    """Consecutive passages of the corpus: ids (n,) of fixed-width bytes, their tokens, and whether each has a
    text, (n,)."""

    number: int
    ids: np.ndarray
    tokens: TokenBatch
    has_text: np.ndarray


class CorpusTokens:
    """Chunks of ``chunk_size`` passages, read and tokenised ahead of the model.

    Args:
        source: a corpus; it must not change while this is used.
        num_passages: number of passages, from ``first_row``.
    """

    def __init__(
        self,
        source: PassageSource,
        num_passages: int,
        tensorizer: Tensorizer,
        *,
        chunk_size: int = CHUNK_ROWS,
        first_row: int = 0,
    ) -> None:
        self.source = source
        self.num_passages = num_passages
        self.chunk_size = chunk_size
        self._rows = range(first_row, first_row + num_passages)
        self._tensorizer = tensorizer
        self._identity = source.identity()

    @property
    def num_chunks(self) -> int:
        return -(-self.num_passages // self.chunk_size)

    def rows_of(self, number: int) -> range:
        """Returns the rows of a chunk."""
        return self._rows[number * self.chunk_size : (number + 1) * self.chunk_size]

    def read(self, numbers: Sequence[int]) -> Iterator[TokenChunk]:
        """Yields the chunks with these ascending numbers. A thread reads and tokenises one chunk ahead; the
        tokenizer and the model both release the interpreter lock.

        Raises:
            InputError: the corpus has changed, or has a bad row.
        """
        self._require_unchanged()
        chunks = self._chunks(numbers)
        with ThreadPoolExecutor(1, thread_name_prefix="tokenize") as pool:
            following = pool.submit(next, chunks, None)
            while (chunk := following.result()) is not None:
                following = pool.submit(next, chunks, None)
                yield chunk

    def _chunks(self, numbers: Sequence[int]) -> Iterator[TokenChunk]:
        """Reads the file once, up to the last of these chunks. A stored source skips the rows between
        them."""
        passages: Iterator[Passage] = iter(())
        end = -1
        for number in numbers:
            wanted = self.rows_of(number)
            if end < 0 or (end < wanted.start and isinstance(self.source, StoredSource)):
                passages = self.source.read(wanted.start, self.rows_of(numbers[-1]).stop)
                end = wanted.start
            found = list(itertools.islice(passages, wanted.start - end, wanted.stop - end))
            end = wanted.stop
            # Rows read from a changing file belong neither to the old corpus nor to the new one.
            self._require_unchanged()
            if len(found) != len(wanted):
                raise InputError("has fewer rows than before", file=self.source.file)
            if any("\0" in str(passage.id) for passage in found):
                raise InputError("an id holds a NUL character", file=self.source.file)
            yield TokenChunk(
                number,
                np.array([str(passage.id).encode() for passage in found], dtype=bytes),
                tokenize_passages(self._tensorizer, [self.source.as_encoded(one) for one in found]),
                np.array([bool(passage.text.strip()) for passage in found]),
            )

    def _require_unchanged(self) -> None:
        if self.source.identity() != self._identity:
            hint = "finish writing it, then start again; an embedding with another out_file"
            raise InputError("has changed while it was read", file=self.source.file, hint=hint)


def fit_to_vectors(model: Towers, shards: Sequence[VectorShard], *, model_file: str = "the model") -> None:
    """Cuts the model's vectors to the width of the passages'.

    Raises:
        InputError: the passage vectors were made by another model, with other settings of it, or for another
            similarity.
    """
    if shards and shards[0].dimension < model.dimension:
        model.keep_dimensions(shards[0].dimension)
    fingerprint = model.fingerprint
    for shard in shards:
        stored = shard.metadata.get("model_fingerprint")
        if stored != fingerprint:
            raise InputError(
                f"vectors of another model (model_fingerprint {stored!r})",
                file=shard.path,
                expected=f"those of {model_file} ({fingerprint!r})",
                hint="embed the corpus with this model, or set model_file to the one they were made with",
            )
        if shard.metadata.get("similarity", "dot") != "dot":
            raise InputError(
                f"vectors for similarity {shard.metadata['similarity']!r}", file=shard.path, expected="'dot'"
            )
