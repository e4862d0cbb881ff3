"""Passages -> tokens -> vectors in the order given, in length-sorted batches of a token budget."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dpr.core.batch import TokenBatch
from dpr.core.compute_settings import autocast
from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, text_sha256
from dpr.data.tensorizer import Tensorizer
from dpr.embedding.source import PassageSource, StoredSource
from dpr.formats.arrays import PackedIds, array_writers
from dpr.formats.token_store import token_dtype
from dpr.models.biencoder import BiEncoder
from dpr.storage.checksums import cache_root
from dpr.storage.steps import Steps

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
    """Default number of tokens of a forward pass without gradient; enough to keep the device busy."""
    return 65536 if device.type == "cuda" else 4096


@dataclass(slots=True)
class TokenBudget:
    """Most tokens of one forward pass, padding included. It shrinks when memory runs out and stays small."""

    tokens: int


def tokenize_passages(tensorizer: Tensorizer, passages: Sequence[Passage]) -> TokenBatch:
    """Tokens of passages; one with neither title nor text has the special tokens only."""
    parts = [
        passages[start : start + _LISTED_PASSAGES] for start in range(0, len(passages), _LISTED_PASSAGES)
    ] or [passages]
    return TokenBatch.join([TokenBatch.from_lists(tensorizer.passage_tokens(part)) for part in parts])


def encode_tokens(
    model: BiEncoder,
    tokens: TokenBatch,
    *,
    encoder_type: str = "ctx",
    batch_tokens: int,
    batch_size: int = 0,
    precision: str = "fp32",
) -> np.ndarray:
    """Vectors (N, D) float32 of N sequences, in the order given, by the model's ``question`` or ``ctx``
    tower; dropout is off.

    A forward pass takes at most ``batch_tokens`` tokens (padding included) and, unless 0, ``batch_size``
    sequences. The batches are a function of the lengths alone, so the same sequences give the same bits again
    on the same machine.
    """
    with autocast(model.device, precision):
        vectors = model.encode_batch(
            tokens, encoder_type=encoder_type, batch_tokens=batch_tokens, max_sequences=batch_size
        )
    return vectors.float().cpu().numpy()


def encode_within_memory(
    model: BiEncoder,
    tokens: TokenBatch,
    budget: TokenBudget,
    *,
    encoder_type: str = "ctx",
    batch_size: int = 0,
    precision: str = "fp32",
) -> np.ndarray:
    """As ``encode_tokens``; when memory runs out, the budget is halved and all sequences are encoded again.

    So every result is made with one budget and equals, bit for bit, that of ``encode_tokens`` with this
    budget.

    Raises:
        InputError: the longest sequence alone does not fit into memory.
    """
    asked = budget.tokens

    def vectors_or_none() -> np.ndarray | None:
        # It returns before the next attempt, because the error's traceback holds tensors.
        try:
            return encode_tokens(
                model,
                tokens,
                encoder_type=encoder_type,
                batch_tokens=budget.tokens,
                batch_size=batch_size,
                precision=precision,
            )
        except RuntimeError as error:
            if isinstance(error, torch.cuda.OutOfMemoryError) or any(
                words in str(error) for words in _OUT_OF_MEMORY
            ):
                return None
            raise

    while (vectors := vectors_or_none()) is None:
        longest = int(tokens.lengths.max())
        if budget.tokens <= longest:
            raise InputError(
                f"one sequence of {longest} tokens does not fit into the memory of device {model.device}",
                hint=(
                    "stop other programs on the device, or use precision=bf16, a larger device or a smaller"
                    " model"
                ),
            )
        most = min(batch_size or len(tokens.lengths), len(tokens.lengths)) * longest  # that a pass can fill
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


_LAYOUT = 2
CHUNK_ROWS = 1024


class TokenChunk(NamedTuple):
    """Passages next to each other in the corpus: ids (n,) of fixed-width bytes, tokens, and which have a
    text, (n,)."""

    number: int
    ids: np.ndarray
    tokens: TokenBatch
    has_text: np.ndarray


class CorpusTokens:
    """Chunks of ``chunk_size`` passages, tokenised when they are first read, then kept in a folder of the cache
    if that is writable, for the next checkpoint or the next pass.

    corpus-tokens-<key>/
      chunk-000000/   tokens.npy    (T,) uint16, or uint32 for large vocabularies: special tokens included, cut
                                    to the model's length
                      lengths.npy   (N,) uint32
                      ids.npy       (N,) byte strings
                      has_text.npy  (N,) bool
      ...             proofs of the chunks (dpr/storage/steps.py); the folder stays open for more

    The key is a hash of the corpus, how it is read, the rows, and everything that decides tokens, so what is
    found under it cannot be another corpus's or stale.

    Args:
        source: a corpus; it must not change while this is used.
        num_passages: so many from ``first_row`` on.
        cache_dir: where folders are kept; default: the cache folder. "off" keeps nothing.
    """

    def __init__(
        self,
        source: PassageSource,
        num_passages: int,
        tensorizer: Tensorizer,
        *,
        chunk_size: int = CHUNK_ROWS,
        first_row: int = 0,
        cache_dir: str | Path | None = None,
    ) -> None:
        self.source = source
        self.num_passages = num_passages
        self.chunk_size = chunk_size
        self._rows = range(first_row, first_row + num_passages)
        self._tensorizer = tensorizer
        self._identity = source.identity()
        self._store = None if cache_dir == "off" else self._opened(cache_root(cache_dir))

    @property
    def num_chunks(self) -> int:
        return -(-self.num_passages // self.chunk_size)

    def rows_of(self, number: int) -> range:
        """The rows of a chunk."""
        return self._rows[number * self.chunk_size : (number + 1) * self.chunk_size]

    def read(self, numbers: Sequence[int]) -> Iterator[TokenChunk]:
        """The chunks of these numbers, which ascend, read and tokenised one ahead in a thread (both the
        tokenizer and the model release the interpreter).

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
        """Those that are missing in one pass over the file, which ends with the last of them; a stored source
        passes over what is between them."""
        passages: Iterator[Passage] = iter(())
        end = -1
        for number in numbers:
            if (chunk := self._stored(number)) is not None:
                yield chunk
                continue
            wanted = self.rows_of(number)
            if end < 0 or (end < wanted.start and isinstance(self.source, StoredSource)):
                passages = self.source.read(wanted.start, self.rows_of(numbers[-1]).stop)
                end = wanted.start
            found = list(itertools.islice(passages, wanted.start - end, wanted.stop - end))
            end = wanted.stop
            # What was read from a file that changes belongs neither to the old corpus nor to the new one.
            self._require_unchanged()
            if len(found) != len(wanted):
                raise InputError("has fewer rows than before", file=self.source.file)
            chunk = TokenChunk(
                number,
                np.array([str(passage.id).encode() for passage in found], dtype=bytes),
                tokenize_passages(self._tensorizer, [self.source.as_encoded(one) for one in found]),
                np.array([bool(passage.text.strip()) for passage in found]),
            )
            if any("\0" in str(passage.id) for passage in found):
                raise InputError("an id holds a NUL character", file=self.source.file)
            self._keep(chunk)
            yield chunk

    def _require_unchanged(self) -> None:
        if self.source.identity() != self._identity:
            hint = "finish writing it, then start again; an embedding with another out_file"
            raise InputError("has changed while it was read", file=self.source.file, hint=hint)

    def _opened(self, cache: Path) -> Steps | None:
        metadata: dict[str, Any] = {
            "kind": "corpus tokens",
            "layout": _LAYOUT,
            "chunk_size": self.chunk_size,
            "first_row": self._rows.start,
            "rows": self.num_passages,
            "corpus": self._identity,
            "tokens": token_rules(self._tensorizer),
        }
        folder = cache / f"corpus-tokens-{text_sha256(json.dumps(metadata, sort_keys=True))[:32]}"
        try:
            return Steps(folder, metadata, restart=True)
        except (OSError, InputError) as error:
            logger.warning("tokens are not kept, since %s cannot be written (%s)", cache, error)
            return None

    def _keep(self, chunk: TokenChunk) -> None:
        if self._store is None:
            return
        arrays = {
            "tokens": chunk.tokens.tokens.numpy().astype(token_dtype(self._tensorizer.largest_id)),
            "lengths": chunk.tokens.lengths.numpy().astype("<u4"),
            "ids": chunk.ids,
            "has_text": chunk.has_text,
        }
        files = {f"{_folder(chunk.number)}/{name}.npy": array for name, array in arrays.items()}
        try:
            self._store.write_step(chunk.number, array_writers(files))
        except (OSError, InputError) as error:
            logger.warning("tokens are not kept, since %s cannot be written (%s)", self._store.folder, error)
            self._store = None

    def _stored(self, number: int) -> TokenChunk | None:
        """A chunk that was kept; None where it was not, or is damaged."""
        if self._store is None or not self._store.is_done(number):
            return None
        folder = self._store.folder / _folder(number)
        tokens, lengths, has_text = (
            np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("tokens", "lengths", "has_text")
        )
        counts = torch.from_numpy(lengths.astype(np.int64))
        batch = TokenBatch(torch.from_numpy(tokens.astype(np.int64)), counts, torch.zeros_like(counts))
        return TokenChunk(number, PackedIds.mapped(folder / "ids.npy")[:], batch, has_text)


def _folder(number: int) -> str:
    return f"chunk-{number:06d}"


def token_rules(tensorizer: Tensorizer) -> dict[str, Any]:
    """Everything that decides the tokens of a passage."""
    stored = tensorizer.text.stored_metadata(None)
    return {
        "vocabulary": tensorizer.vocabulary_fingerprint,
        "sequence_length": tensorizer.sequence_length,
        "truncation_side": tensorizer.tokenizer.truncation_side,
        "passage_prompt": stored.get("passage_prompt"),
        "title_template": stored.get("title_template"),
    }
