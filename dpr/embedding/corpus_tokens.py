"""The ids and tokens of a corpus on disk, by chunks, for models that encode it again and again: a training run validates on it.

corpus-tokens-<key>/
  chunk-000000/
    ids.npy       (n,) byte strings
    tokens.npy    (T,) uint16, or uint32 for large vocabularies: special tokens included, cut to the model's length
    lengths.npy   (n,) uint32
    manifest.json

The key is a hash of the corpus, of how it is read, and of everything that decides tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpr.core.batch import TokenBatch
from dpr.core.errors import InputError
from dpr.core.hashes import text_sha256
from dpr.core.logs import get_logger
from dpr.data.tensorizer import Tensorizer
from dpr.embedding.chunks import Chunk, chunk_rows, prepared_chunks
from dpr.embedding.encode import tokenize_passages
from dpr.embedding.source import PassageSource
from dpr.embedding.token_cache import read_tokens, token_rules, write_tokens
from dpr.formats.arrays import map_ids
from dpr.storage.checksums import cache_root

logger = get_logger(__name__)

_LAYOUT = 1
CHUNK_ROWS = 1024


class TokenChunk(NamedTuple):
    """Passages next to each other in the corpus: the row of the first, ids (n,) of fixed-width bytes, and tokens."""

    first_row: int
    ids: np.ndarray
    tokens: TokenBatch


class CorpusTokens:
    """Chunks of ``chunk_size`` passages. They are tokenised when they are first read, then kept in the cache folder if that is writable.

    Args:
        source: a corpus of ``num_passages``; it must not change while this is used.
    """

    def __init__(
        self, source: PassageSource, num_passages: int, tensorizer: Tensorizer, *, chunk_size: int = CHUNK_ROWS, cache: Path | None = None
    ) -> None:
        self.source, self.num_passages, self._tensorizer, self.chunk_size = source, num_passages, tensorizer, chunk_size
        self._identity = source.identity()
        facts = json.dumps([_LAYOUT, chunk_size, self._identity, token_rules(tensorizer)], sort_keys=True)
        self._folder = cache_root(cache) / f"corpus-tokens-{text_sha256(facts)[:32]}"
        self._is_writable = True

    @property
    def num_chunks(self) -> int:
        return -(-self.num_passages // self.chunk_size)

    def read(self, numbers: Sequence[int]) -> Iterator[TokenChunk]:
        """The chunks of these numbers, which ascend; what is missing is tokenised in one pass over the file, a chunk ahead.

        Raises:
            InputError: the corpus has changed, or has a bad row.
        """
        if self.source.identity() != self._identity:
            raise InputError("has changed during the run", file=self.source.file, hint="finish writing it, then rerun to resume")
        missing = [number for number in numbers if not self._of(number).is_dir()]
        made = self._made(missing)
        for number in numbers:
            found = None if number in missing else self._stored(number)
            if found is None:  # not there yet, or damaged
                found = next(made if number in missing else self._made([number]))
            yield found

    def _of(self, number: int) -> Path:
        return self._folder / f"chunk-{number:06d}"

    def _made(self, numbers: list[int]) -> Iterator[TokenChunk]:
        rows, size = range(self.num_passages), self.chunk_size
        for chunk in prepared_chunks(self.source, rows, numbers, size, lambda passages: tokenize_passages(self._tensorizer, passages)):
            ids = np.array([key.encode() for key in chunk.ids], dtype=bytes)
            self._keep(chunk, ids)
            yield TokenChunk(chunk_rows(rows, chunk.number, size).start, ids, chunk.tokens)

    def _keep(self, chunk: Chunk, ids: np.ndarray) -> None:
        if not self._is_writable:
            return
        try:
            write_tokens(self._of(chunk.number), chunk.tokens, self._tensorizer, kind="corpus tokens", ids=ids)
        except (OSError, InputError) as error:
            self._is_writable = False
            logger.warning("tokens of the corpus are not kept, since %s cannot be written (%s)", self._folder, error)

    def _stored(self, number: int) -> TokenChunk | None:
        tokens = read_tokens(folder := self._of(number))
        return None if tokens is None else TokenChunk(number * self.chunk_size, map_ids(folder / "ids.npy"), tokens)
