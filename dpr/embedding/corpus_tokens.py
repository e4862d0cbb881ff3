"""Tokens on disk: of passages that are embedded again by other checkpoints, and of a corpus that a run
encodes again and again.

passages-<key>/, corpus-tokens-<key>/chunk-000000/
  tokens.npy    (T,) uint16, or uint32 for large vocabularies: special tokens included, cut to the model's
  length lengths.npy   (N,) uint32 ids.npy       (N,) byte strings, of a corpus manifest.json

A key is a hash of the texts, or of the corpus and how it is read, and of everything that decides tokens, so
what is found under it cannot be another corpus's or stale.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dpr.core.batch import TokenBatch
from dpr.core.errors import InputError
from dpr.core.hashes import text_sha256
from dpr.core.logs import get_logger
from dpr.core.records import Passage
from dpr.data.tensorizer import Tensorizer
from dpr.embedding.chunks import prepared_chunks
from dpr.embedding.encode import tokenize_passages
from dpr.embedding.source import PassageSource
from dpr.formats.arrays import map_ids
from dpr.formats.token_store import token_dtype
from dpr.storage.checksums import cache_root
from dpr.storage.durable import durable_folder, verify_folder

logger = get_logger(__name__)

_LAYOUT = 1
CHUNK_ROWS = 1024


class TokenChunk(NamedTuple):
    """Passages next to each other in the corpus: ids (n,) of fixed-width bytes, and tokens."""

    ids: np.ndarray
    tokens: TokenBatch


class _TokenFolders:
    """Folders of tokens in a cache. Once one cannot be written, no more are kept."""

    def __init__(self, folder: Path, tensorizer: Tensorizer) -> None:
        self._folder, self._tensorizer = folder, tensorizer
        self._is_writable = True

    def _keep(self, name: str, batch: TokenBatch, *, kind: str, **others: np.ndarray) -> None:
        """Writes a folder with ``tokens.npy`` and ``lengths.npy``, and ``others`` by their names."""
        if not self._is_writable:
            return
        tokens = batch.tokens.numpy().astype(token_dtype(self._tensorizer.largest_id))
        arrays = {"tokens": tokens, "lengths": batch.lengths.numpy().astype("<u4"), **others}
        try:
            with durable_folder(self._folder / name, overwrite=True, metadata={"kind": kind}) as temporary:
                for key, array in arrays.items():
                    np.save(temporary / f"{key}.npy", array, allow_pickle=False)
        except (OSError, InputError) as error:
            self._is_writable = False
            logger.warning("%s are not kept, since %s cannot be written (%s)", kind, self._folder, error)


class CorpusTokens(_TokenFolders):
    """Chunks of ``chunk_size`` passages. They are tokenised when they are first read, then kept in the cache
    folder if that is writable.

    Args:
        source: a corpus of ``num_passages``; it must not change while this is used.
    """

    def __init__(
        self,
        source: PassageSource,
        num_passages: int,
        tensorizer: Tensorizer,
        *,
        chunk_size: int = CHUNK_ROWS,
    ) -> None:
        self.source, self.num_passages, self.chunk_size = source, num_passages, chunk_size
        self._identity = source.identity()
        facts = json.dumps([_LAYOUT, chunk_size, self._identity, token_rules(tensorizer)], sort_keys=True)
        super().__init__(cache_root(None) / f"corpus-tokens-{text_sha256(facts)[:32]}", tensorizer)

    @property
    def num_chunks(self) -> int:
        return -(-self.num_passages // self.chunk_size)

    def read(self, numbers: Sequence[int]) -> Iterator[TokenChunk]:
        """The chunks of these numbers, which ascend; what is missing is tokenised in one pass over the file,
        a chunk ahead.

        Raises:
            InputError: the corpus has changed, or has a bad row.
        """
        if self.source.identity() != self._identity:
            raise InputError(
                "has changed during the run",
                file=self.source.file,
                hint="finish writing it, then rerun to resume",
            )
        missing = [number for number in numbers if not self._of(number).is_dir()]
        made = self._made(missing)
        for number in numbers:
            chunk = None if number in missing else self._stored(number)
            if chunk is None:  # not there yet, or damaged
                chunk = next(made if number in missing else self._made([number]))
            yield chunk

    def _of(self, number: int) -> Path:
        return self._folder / f"chunk-{number:06d}"

    def _made(self, numbers: list[int]) -> Iterator[TokenChunk]:
        rows, size = range(self.num_passages), self.chunk_size
        for chunk in prepared_chunks(
            self.source, rows, numbers, size, lambda passages: tokenize_passages(self._tensorizer, passages)
        ):
            ids = np.array([key.encode() for key in chunk.ids], dtype=bytes)
            self._keep(self._of(chunk.number).name, chunk.tokens, kind="corpus tokens", ids=ids)
            yield TokenChunk(ids, chunk.tokens)

    def _stored(self, number: int) -> TokenChunk | None:
        tokens = read_tokens(folder := self._of(number))
        return None if tokens is None else TokenChunk(map_ids(folder / "ids.npy"), tokens)


class TokenCache(_TokenFolders):
    """Tokenises chunks of passages, each once. A damaged chunk is tokenised again; if the folder is not
    writable, nothing is kept."""

    def __init__(self, folder: Path, tensorizer: Tensorizer) -> None:
        super().__init__(folder, tensorizer)
        self._rules = token_rules(tensorizer)

    def tokens(self, passages: Sequence[Passage]) -> TokenBatch:
        """Exactly what ``tokenize_passages`` gives."""
        folder = self._folder / f"passages-{self._key(passages)}"
        batch = read_tokens(folder) if folder.is_dir() else None
        if batch is None:
            batch = tokenize_passages(self._tensorizer, passages)
            self._keep(folder.name, batch, kind="passage tokens")
        return batch

    def _key(self, passages: Sequence[Passage]) -> str:
        digest = hashlib.sha256(self._rules.encode())
        for passage in passages:
            text = f"{len(passage.title)} {len(passage.text)} {passage.title}{passage.text}"
            digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:32]


def token_rules(tensorizer: Tensorizer) -> str:
    """Everything that decides the tokens of a passage, as text."""
    cut = [tensorizer.sequence_length, tensorizer.tokenizer.truncation_side]
    facts = {
        name: value
        for name, value in tensorizer.text.stored_facts(None).items()
        if name in ("passage_prompt", "title_template")
    }
    return json.dumps([_LAYOUT, tensorizer.vocabulary_fingerprint, cut, *([facts] if facts else [])])


def read_tokens(folder: Path) -> TokenBatch | None:
    """The tokens stored there; None if anything in the folder is missing or damaged."""
    if verify_folder(folder):
        return None
    tokens, lengths = (
        torch.from_numpy(np.load(folder / name, allow_pickle=False).astype(np.int64))
        for name in ("tokens.npy", "lengths.npy")
    )
    return TokenBatch(tokens, lengths, torch.zeros_like(lengths))
