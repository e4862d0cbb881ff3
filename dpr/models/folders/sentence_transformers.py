"""Reader of a sentence-transformers folder: one tower, or two, with their weights, from the modules that
``sentence_transformers_modules`` finds in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpr.core.errors import CheckpointError, InputError, first_line
from dpr.core.machine import panics_caught
from dpr.data.text import SPACED_TITLE
from dpr.data.tokenizer_files import check_tokenizer_files, lower_cases
from dpr.formats import checkpoints
from dpr.formats.model_folder import CONFIG, ModelFolder
from dpr.models.folders.model_parts import (
    LONGEST,
    ForeignTower,
    Given,
    ModelParts,
    backbone_tower,
    bi_encoder_of,
    marks_segments,
)
from dpr.models.folders.peft_adapter import adapter_tower, is_adapter
from dpr.models.folders.sentence_transformers_modules import (
    SIDES,
    STATIC,
    Modules,
    body_settings,
    described_settings,
    read_modules,
    stated_length,
)
from dpr.storage.untrusted import describe

# Values with which a Dense is a linear layer of the pooled vector and nothing else.
_PLAIN_DENSE = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}
_TANH = "torch.nn.modules.activation.Tanh"
ACTIVATIONS = {"none": "torch.nn.modules.linear.Identity", "tanh": _TANH}
WEIGHT = "linear.weight"
BIAS = "linear.bias"
_TOKENIZER = "tokenizer.json"
_EMPTY = "<|empty|>"
TABLE = "embedding.weight"


def read_sentence_transformers(folder: ModelFolder, given: Given) -> ModelParts:
    """Reads one tower, or the two of a Router, from the modules of the folder. Each side has its own length."""
    sides = read_modules(folder)
    settings, stated = described_settings(folder, sides, given.settings)
    read: dict[Modules, tuple[ForeignTower, int | None]] = {}
    for modules in dict.fromkeys(sides):
        length = None
        if modules.kind == STATIC:
            tower, length = static_tower(modules.body)
        elif is_adapter(modules.body):
            tower = adapter_tower(modules.body, given)
        else:
            tower = backbone_tower(modules.body)
        expects_lower_case = body_settings(modules.body).get("do_lower_case") and tower.tokenizer.is_fast
        if expects_lower_case and not lower_cases(tower.tokenizer):
            raise CheckpointError(
                "do_lower_case is true, but its tokenizer keeps upper case",
                file=modules.body.path,
                expected="a tokenizer that lower-cases texts itself, or do_lower_case: false",
            )
        read[modules] = projected(tower, modules.dense), length
        if marks_segments(tower, "1"):
            raise CheckpointError(
                "its tokenizer gives the tokens of a text other types",
                file=tower.source,
                expected="token type 0; the toolkit has no other",
            )
        if "title_template" not in stated and not settings.title_template and marks_segments(tower, "1", "2"):
            # Users of the library encode titles this way; a pair would have token types.
            settings = replace(settings, title_template=SPACED_TITLE)
    lengths = []
    for side, modules in zip(SIDES, sides, strict=True):
        tower, length = read[modules]
        positions = getattr(tower.config, "max_position_embeddings", None) or 0
        lengths.append(length or stated_length(modules.body, side, min(positions, tower.longest)))
    (question, _), (ctx, _) = (read[modules] for modules in sides)
    width = question.settings.get("projection_dim", question.config.hidden_size)
    if settings.dimensions >= width:  # nothing to cut
        settings = replace(settings, dimensions=0)
    return bi_encoder_of(question, ctx, settings, lengths=lengths, stated=stated, own_text=True)


def static_tower(folder: ModelFolder) -> tuple[ForeignTower, int]:
    """Reads a static encoder; returns its tower and the length at which texts are cut.

    The tokenizer adds no special tokens. A text without tokens gets a token of its own. The row of that token
    is zero, as the library's vector of such a text is.

    Raises:
        InputError: a file is absent, damaged, or of an unknown layout.
    """
    from transformers import PreTrainedTokenizerFast

    from dpr.models.static import StaticConfig  # imports transformers

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
    table = stored.get(TABLE, stored.get("embeddings"))
    if table is None or len(stored) != 1 or table.dim() != 2 or not table.is_floating_point():
        raise CheckpointError(
            f"holds {', '.join(sorted(stored))[:100] or 'nothing'}",
            file=folder.path / checkpoints.MODEL_FILE,
            expected=f"a table of numbers alone, {TABLE} or embeddings, with a row for each token",
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


def projected(tower: ForeignTower, folders: Sequence[ModelFolder]) -> ForeignTower:
    """Returns the tower with the layers in ``folders``, in order, as its projection. Consecutive linear
    layers become one; the last may have an activation.

    Raises:
        CheckpointError: a layer is not linear, or damaged.
    """
    if not folders:
        return tower
    weight, bias, activation = dense_layer(folders[0])
    for folder in folders[1:]:
        if activation != "none":
            raise CheckpointError(
                "another Dense comes after its activation",
                file=folder.path.parent,
                expected="Tanh in the last Dense alone",
            )
        second, added, activation = dense_layer(folder)
        if second.shape[1] != len(weight):
            raise CheckpointError(
                f"takes vectors of {second.shape[1]} numbers",
                file=folder.path,
                expected=f"the {len(weight)} it is given",
            )
        weight = second @ weight
        bias = second @ bias + added
    layer = {"encode_proj.weight": weight.float().contiguous(), "encode_proj.bias": bias.float()}
    return tower._replace(
        weights=tower.weights | layer,
        settings={**tower.settings, "projection_dim": len(weight), "projection_activation": activation},
    )


def dense_layer(folder: ModelFolder) -> tuple[Tensor, Tensor, str]:
    """Returns matrix and bias in fp64, and the activation that follows."""
    file = folder.path / CONFIG
    stated = folder.settings(CONFIG)
    if not stated:
        raise CheckpointError("is missing or empty", file=file, expected="the settings of a Dense")
    folder.require_plain(CONFIG, _PLAIN_DENSE, "a linear layer after the pooling")
    function = stated.get("activation_function", _TANH)
    activation = next((name for name, path in ACTIVATIONS.items() if path == function), None)
    if activation is None:
        raise CheckpointError(
            f"activation_function of this Dense is {describe(function)}",
            file=file,
            expected="Identity or Tanh",
        )
    folder.require_safetensors()
    stored = checkpoints.read_tensors(folder.path, checkpoints.MODEL_FILE)
    weight = stored.get(WEIGHT, torch.zeros(0)).double()
    bias = stored.get(BIAS, weight.new_zeros(len(weight))).double()
    if not stored.keys() <= {WEIGHT, BIAS} or weight.dim() != 2 or bias.shape != weight.shape[:1]:
        raise CheckpointError(
            f"holds {', '.join(sorted(stored))[:100] or 'nothing'}",
            file=folder.path / checkpoints.MODEL_FILE,
            expected="the matrix and bias of one linear layer",
        )
    return weight, bias, activation
