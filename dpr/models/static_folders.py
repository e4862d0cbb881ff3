"""The static encoder of a sentence-transformers folder (``StaticEmbedding``): the mean of the rows of a text's tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpr.core.errors import CheckpointError, InputError, first_line
from dpr.data.tokenizer_files import check_tokenizer_files
from dpr.formats import checkpoints
from dpr.models.foreign_towers import ForeignTower
from dpr.models.pretrained import check_safetensors
from dpr.models.static import StaticConfig
from dpr.storage.durable import read_json

LONGEST = 1 << 17
"""The length of texts where the tokenizer's file cuts none: the library reads them to the end."""
_TOKENIZER = "tokenizer.json"
_EMPTY = "<|empty|>"


def static_tower(folder: Path) -> tuple[ForeignTower, int]:
    """The tower, and the length at which texts are cut.

    The tokenizer adds no special tokens. A text without tokens gets one of its own, whose row is zero, as its vector is in the library.

    Raises:
        InputError: a file is absent, damaged, or of an unknown layout.
    """
    check_safetensors(folder)
    tokenizer, length = _tokenizer(folder)
    table = _table(folder)
    empty = int(tokenizer.convert_tokens_to_ids(_EMPTY))
    largest = max(token for token in tokenizer.get_vocab().values() if token != empty)
    if largest >= len(table):
        raise CheckpointError(f"has {len(table)} rows", file=folder, expected=f"one for each of the tokenizer's {largest + 1} tokens")
    table = torch.cat([table, table.new_zeros(max(empty + 1 - len(table), 0), table.shape[1])])
    table[empty] = 0
    config = StaticConfig(vocab_size=len(table), hidden_size=table.shape[1], pad_token_id=empty)
    return ForeignTower(folder, config, tokenizer, {"backbone.words.weight": table}), length


def _tokenizer(folder: Path) -> tuple[Any, int]:
    """The tokenizer of the file without the special tokens that it would add, and the length that the file states."""
    from transformers import PreTrainedTokenizerFast

    file = folder / _TOKENIZER
    if not file.is_file():
        raise InputError("there is no such file", file=file)
    check_tokenizer_files(folder)
    state = read_json(file)
    cut = (state.get("truncation") or {}).get("max_length", LONGEST)
    try:
        given = PreTrainedTokenizerFast(tokenizer_file=str(file))
        backend: Any = type(given.backend_tokenizer)
        plain = backend.from_str(json.dumps(state | {"post_processor": None, "truncation": None, "padding": None}))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token=_EMPTY, truncation_side=given.truncation_side)
    except BaseException as error:  # the tokenizers package raises plain Exceptions over damaged files, or panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"cannot be read ({first_line(error)})", file=file, expected="a tokenizer of the tokenizers library") from error
    return tokenizer, min(cut, LONGEST) if type(cut) is int and cut > 0 else LONGEST


def _table(folder: Path) -> Tensor:
    """The rows by token id: those of the library, or of model2vec, whose tokens may share rows and have weights."""
    stored = checkpoints.read_tensors(folder, checkpoints.MODEL_FILE)
    table = stored.get("embedding.weight", stored.get("embeddings"))
    if table is None or table.dim() != 2 or not table.is_floating_point():
        found = f"holds {', '.join(sorted(stored))[:100] or 'nothing'}"
        raise CheckpointError(found, file=folder / checkpoints.MODEL_FILE, expected="a table of numbers, embedding.weight or embeddings")
    table = table.float()
    if "embeddings" in stored:
        rows, weights = stored.get("mapping"), stored.get("weights")
        try:
            table = table if rows is None else table[rows.long()]
            table = table if weights is None else table * weights.float()[:, None]
        except (IndexError, RuntimeError) as error:
            found = f"mapping and weights do not fit the table ({first_line(error)})"
            raise CheckpointError(found, file=folder / checkpoints.MODEL_FILE) from error
    return table.clone()
