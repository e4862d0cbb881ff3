"""The modules with weights of a sentence-transformers folder, read and written: the table of a
``StaticEmbedding``, the mean of the rows of a text's tokens, and the linear layers after the pooling
(``Dense``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpr.core.errors import CheckpointError, InputError, first_line
from dpr.data.tokenizer_files import check_tokenizer_files
from dpr.formats import checkpoints
from dpr.models.backbones import CONFIG, check_safetensors, read_object
from dpr.models.foreign_towers import ForeignTower
from dpr.models.static import StaticConfig
from dpr.storage.durable import read_json
from dpr.storage.strict_json import describe

LONGEST = 1 << 17
"""The length of texts where the tokenizer's file cuts none: the library reads them to the end."""
_TOKENIZER = "tokenizer.json"
_EMPTY = "<|empty|>"
# What would make a Dense anything but a linear layer of the pooled vector.
_PLAIN_DENSE = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}
_TANH = "torch.nn.modules.activation.Tanh"
_ACTIVATIONS = {"torch.nn.modules.linear.Identity": "none", _TANH: "tanh"}
_TABLE, _WEIGHT, _BIAS = "embedding.weight", "linear.weight", "linear.bias"


def static_tower(folder: Path) -> tuple[ForeignTower, int]:
    """The tower, and the length at which texts are cut.

    The tokenizer adds no special tokens. A text without tokens gets one of its own, whose row is zero, as its
    vector is in the library.

    Raises:
        InputError: a file is absent, damaged, or of an unknown layout.
    """
    check_safetensors(folder)
    tokenizer, length = _static_tokenizer(folder)
    table = _table(folder)
    empty = int(tokenizer.convert_tokens_to_ids(_EMPTY))
    largest = max(token for token in tokenizer.get_vocab().values() if token != empty)
    if largest >= len(table):
        raise CheckpointError(
            f"has {len(table)} rows",
            file=folder,
            expected=f"one for each of the tokenizer's {largest + 1} tokens",
        )
    table = torch.cat([table, table.new_zeros(max(empty + 1 - len(table), 0), table.shape[1])])
    table[empty] = 0
    config = StaticConfig(vocab_size=len(table), hidden_size=table.shape[1], pad_token_id=empty)
    return ForeignTower(folder, config, tokenizer, {"backbone.words.weight": table}), length


def _static_tokenizer(folder: Path) -> tuple[Any, int]:
    """The tokenizer of the file without the special tokens that it would add, and the length that the file
    states."""
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
        plain = backend.from_str(
            json.dumps(state | {"post_processor": None, "truncation": None, "padding": None})
        )
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=plain, pad_token=_EMPTY, truncation_side=given.truncation_side
        )
    except (
        BaseException
    ) as error:  # the tokenizers package raises plain Exceptions over damaged files, or panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(
            f"cannot be read ({first_line(error)})",
            file=file,
            expected="a tokenizer of the tokenizers library",
        ) from error
    return tokenizer, min(cut, LONGEST) if type(cut) is int and cut > 0 else LONGEST


def _table(folder: Path) -> Tensor:
    """The rows by token id: those of the library, or of model2vec, whose tokens may share rows and have
    weights."""
    stored = checkpoints.read_tensors(folder, checkpoints.MODEL_FILE)
    table = stored.get(_TABLE, stored.get("embeddings"))
    if table is None or table.dim() != 2 or not table.is_floating_point():
        found = f"holds {', '.join(sorted(stored))[:100] or 'nothing'}"
        raise CheckpointError(
            found,
            file=folder / checkpoints.MODEL_FILE,
            expected=f"a table of numbers, {_TABLE} or embeddings",
        )
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


def write_table(folder: Path, rows: Tensor, **others: Tensor) -> None:
    """Writes the rows (V, D) of a ``StaticEmbedding``, and what else it holds."""
    checkpoints.write_tensors(folder, checkpoints.MODEL_FILE, {_TABLE: rows, **others})


def projected(tower: ForeignTower, folders: Sequence[Path]) -> ForeignTower:
    """The tower with the layers, one after the other, as its projection: linear layers after each other are
    one, and the last may have an activation.

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
                file=folder.parent,
                expected="Tanh in the last Dense alone",
            )
        second, added, activation = dense_layer(folder)
        if second.shape[1] != len(weight):
            raise CheckpointError(
                f"takes vectors of {second.shape[1]} numbers",
                file=folder,
                expected=f"the {len(weight)} it is given",
            )
        weight, bias = second @ weight, second @ bias + added
    layer = {"encode_proj.weight": weight.float().contiguous(), "encode_proj.bias": bias.float()}
    return tower._replace(
        weights=tower.weights | layer,
        settings={**tower.settings, "projection_dim": len(weight), "projection_activation": activation},
    )


def dense_layer(folder: Path) -> tuple[Tensor, Tensor, str]:
    """Matrix and bias in fp64, and what follows."""
    file = folder / CONFIG
    stated = read_object(file)
    if not stated:
        raise CheckpointError("is missing or empty", file=file, expected="the settings of a Dense")
    for name, usual in _PLAIN_DENSE.items():
        if (stated.get(name) or usual) != usual:
            found = f"{name} of this Dense is {describe(stated[name])}"
            raise CheckpointError(found, file=file, expected=f"{usual}, a linear layer behind the pooling")
    function = stated.get("activation_function", _TANH)
    activation = _ACTIVATIONS.get(function) if isinstance(function, str) else None
    if activation is None:
        found = f"activation_function of this Dense is {describe(function)}"
        raise CheckpointError(found, file=file, expected="Identity or Tanh")
    check_safetensors(folder)
    stored = checkpoints.read_tensors(folder, checkpoints.MODEL_FILE)
    weight, bias = stored.get(_WEIGHT), stored.get(_BIAS)
    is_linear = weight is not None and weight.dim() == 2 and stored.keys() <= {_WEIGHT, _BIAS}
    if weight is None or not is_linear or (bias is not None and bias.shape != weight.shape[:1]):
        found = f"holds {', '.join(sorted(stored))[:100] or 'nothing'}"
        raise CheckpointError(
            found, file=folder / checkpoints.MODEL_FILE, expected="the matrix and bias of one linear layer"
        )
    weight = weight.double()
    return weight, weight.new_zeros(len(weight)) if bias is None else bias.double(), activation


def write_dense(folder: Path, weight: Tensor, bias: Tensor | None, activation: str) -> None:
    """Writes a linear layer, its matrix (outputs, inputs), with ``encoder.projection_activation`` behind
    it."""
    rows, columns = weight.shape
    function = next(function for function, name in _ACTIVATIONS.items() if name == activation)
    stated = {
        "in_features": columns,
        "out_features": rows,
        "bias": bias is not None,
        "activation_function": function,
    }
    write_module(folder, stated, {_WEIGHT: weight} | ({} if bias is None else {_BIAS: bias}))


def write_module(folder: Path, stated: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Writes the settings and, where it has any, the weights of a module."""
    folder.mkdir(exist_ok=True)
    checkpoints.write_json_file(folder, CONFIG, stated)
    if weights:
        checkpoints.write_tensors(folder, checkpoints.MODEL_FILE, weights)
