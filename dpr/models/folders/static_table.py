"""Reader and writer of the table of a ``StaticEmbedding`` and its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpr.core.errors import CheckpointError, InputError, first_line
from dpr.core.machine import panics_caught
from dpr.data.tokenizer_files import check_tokenizer_files
from dpr.formats import checkpoints
from dpr.formats.model_folder import ModelFolder
from dpr.models.folders.foreign_towers import LONGEST, ForeignTower
from dpr.models.static import StaticConfig

_TOKENIZER = "tokenizer.json"
_EMPTY = "<|empty|>"
_TABLE = "embedding.weight"


def static_tower(folder: ModelFolder) -> tuple[ForeignTower, int]:
    """Reads a static encoder; returns its tower and the length at which texts are cut.

    The tokenizer adds no special tokens. A text without tokens gets a token of its own. The row of that token
    is zero, as the library's vector of such a text is.

    Raises:
        InputError: a file is absent, damaged, or of an unknown layout.
    """
    from transformers import PreTrainedTokenizerFast

    folder.require_safetensors()
    file = folder.path / _TOKENIZER
    if not file.is_file():
        raise InputError("there is no such file", file=file)
    check_tokenizer_files(folder)
    state = folder.settings(_TOKENIZER)
    length = (state.get("truncation") or {}).get("max_length", LONGEST)
    length = min(length, LONGEST) if type(length) is int and length > 0 else LONGEST
    without = {"post_processor": None, "truncation": None, "padding": None}
    try:
        with panics_caught():
            given = PreTrainedTokenizerFast(tokenizer_file=str(file))
            backend: Any = type(given.backend_tokenizer)
            tokenizer: Any = PreTrainedTokenizerFast(
                tokenizer_object=backend.from_str(json.dumps(state | without)),
                pad_token=_EMPTY,
                truncation_side=given.truncation_side,
            )
    except Exception as error:  # the tokenizers package raises plain Exceptions over damaged files
        raise InputError(
            f"cannot be read ({first_line(error)})",
            file=file,
            expected="a tokenizer of the tokenizers library",
        ) from error
    # The rows by token id, under the library's name or model2vec's.
    stored = checkpoints.read_tensors(folder.path, checkpoints.MODEL_FILE)
    table = stored.get(_TABLE, stored.get("embeddings"))
    if table is None or len(stored) != 1 or table.dim() != 2 or not table.is_floating_point():
        raise CheckpointError(
            f"holds {', '.join(sorted(stored))[:100] or 'nothing'}",
            file=folder.path / checkpoints.MODEL_FILE,
            expected=f"a table of numbers alone, {_TABLE} or embeddings, with a row for each token",
        )
    table = table.float()
    empty = int(tokenizer.convert_tokens_to_ids(_EMPTY))
    largest = max(token for token in tokenizer.get_vocab().values() if token != empty)
    if largest >= len(table):
        raise CheckpointError(
            f"has {len(table)} rows",
            file=folder.path,
            expected=f"one for each of the tokenizer's {largest + 1} tokens",
        )
    table = torch.cat([table, table.new_zeros(max(empty + 1 - len(table), 0), table.shape[1])])
    table[empty] = 0
    config = StaticConfig(vocab_size=len(table), hidden_size=table.shape[1], pad_token_id=empty)
    return ForeignTower(folder.path, config, tokenizer, {"backbone.words.weight": table}), length


def write_table(folder: Path, rows: Tensor) -> None:
    """Writes the rows (V, D) of a ``StaticEmbedding``."""
    checkpoints.write_tensors(folder, checkpoints.MODEL_FILE, {_TABLE: rows})
