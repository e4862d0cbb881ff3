"""Tokens of passages, kept on disk by what they were made of, for a corpus that is embedded again by other checkpoints of one tokenizer.

passages-<key>/
  tokens.npy    (T,) uint16, or uint32 for large vocabularies: special tokens included, cut to the model's length
  lengths.npy   (N,) uint32
  manifest.json

The key is a hash of the texts and of everything that decides their tokens, so what is found under it cannot be another corpus's or stale.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from dpr.core.batch import TokenBatch
from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage
from dpr.data.tensorizer import Tensorizer
from dpr.embedding.encode import tokenize_passages
from dpr.formats.token_store import token_dtype
from dpr.storage.durable import durable_folder, verify_folder

logger = get_logger(__name__)

_LAYOUT = 1


class TokenCache:
    """Tokenises chunks of passages, each once. A damaged chunk is tokenised again; if the folder is not writable, nothing is kept."""

    def __init__(self, folder: Path, tensorizer: Tensorizer) -> None:
        self._folder, self._tensorizer = folder, tensorizer
        self._rules = token_rules(tensorizer)
        self._is_writable = True

    def tokens(self, passages: Sequence[Passage]) -> TokenBatch:
        """Exactly what ``tokenize_passages`` gives."""
        folder = self._folder / f"passages-{self._key(passages)}"
        found = read_tokens(folder) if folder.is_dir() else None
        if found is None:
            found = tokenize_passages(self._tensorizer, passages)
            self._write(folder, found)
        return found

    def _key(self, passages: Sequence[Passage]) -> str:
        digest = hashlib.sha256(self._rules.encode())
        for passage in passages:
            text = f"{len(passage.title)} {len(passage.text)} {passage.title}{passage.text}"
            digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:32]

    def _write(self, folder: Path, batch: TokenBatch) -> None:
        if not self._is_writable:
            return
        try:
            write_tokens(folder, batch, self._tensorizer, kind="passage tokens")
        except (OSError, InputError) as error:
            self._is_writable = False
            logger.warning("tokens are not kept, since %s cannot be written (%s)", self._folder, error)


def token_rules(tensorizer: Tensorizer) -> str:
    """Everything that decides the tokens of a passage, as text."""
    cut = [tensorizer.sequence_length, tensorizer.tokenizer.truncation_side]
    facts = {name: value for name, value in tensorizer.text.stored_facts(None).items() if name in ("passage_prompt", "title_template")}
    return json.dumps([_LAYOUT, tensorizer.vocabulary_fingerprint, cut, *([facts] if facts else [])])


def write_tokens(folder: Path, batch: TokenBatch, tensorizer: Tensorizer, *, kind: str, **others: np.ndarray) -> None:
    """Writes a folder with ``tokens.npy`` and ``lengths.npy``, and ``others`` by their names."""
    with durable_folder(folder, overwrite=True, metadata={"kind": kind}) as temporary:
        np.save(temporary / "tokens.npy", batch.tokens.numpy().astype(token_dtype(tensorizer.largest_id)), allow_pickle=False)
        np.save(temporary / "lengths.npy", batch.lengths.numpy().astype("<u4"), allow_pickle=False)
        for name, array in others.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)


def read_tokens(folder: Path) -> TokenBatch | None:
    """The tokens stored there; None if anything in the folder is missing or damaged."""
    if verify_folder(folder):
        return None
    tokens, lengths = (
        torch.from_numpy(np.load(folder / name, allow_pickle=False).astype(np.int64)) for name in ("tokens.npy", "lengths.npy")
    )
    return TokenBatch(tokens, lengths, torch.zeros_like(lengths))
