"""Reader and writer of linear layers after the pooling (``Dense`` of sentence-transformers)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpr.core.errors import CheckpointError
from dpr.formats import checkpoints
from dpr.formats.model_folder import CONFIG, ModelFolder
from dpr.models.folders.foreign_towers import ForeignTower
from dpr.storage.untrusted import describe

# Values with which a Dense is a linear layer of the pooled vector and nothing else.
_PLAIN_DENSE = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}
_TANH = "torch.nn.modules.activation.Tanh"
_ACTIVATIONS = {"torch.nn.modules.linear.Identity": "none", _TANH: "tanh"}
_WEIGHT = "linear.weight"
_BIAS = "linear.bias"


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
    folder.require_plain(CONFIG, _PLAIN_DENSE, "a linear layer behind the pooling")
    function = stated.get("activation_function", _TANH)
    activation = _ACTIVATIONS.get(function) if isinstance(function, str) else None
    if activation is None:
        raise CheckpointError(
            f"activation_function of this Dense is {describe(function)}",
            file=file,
            expected="Identity or Tanh",
        )
    folder.require_safetensors()
    stored = checkpoints.read_tensors(folder.path, checkpoints.MODEL_FILE)
    weight = stored.get(_WEIGHT, torch.zeros(0)).double()
    bias = stored.get(_BIAS, weight.new_zeros(len(weight))).double()
    if not stored.keys() <= {_WEIGHT, _BIAS} or weight.dim() != 2 or bias.shape != weight.shape[:1]:
        raise CheckpointError(
            f"holds {', '.join(sorted(stored))[:100] or 'nothing'}",
            file=folder.path / checkpoints.MODEL_FILE,
            expected="the matrix and bias of one linear layer",
        )
    return weight, bias, activation


def write_dense(folder: Path, weight: Tensor, bias: Tensor | None, activation: str) -> None:
    """Writes a linear layer with the matrix (outputs, inputs) and ``encoder.projection_activation`` after it."""
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
    """Writes the settings of a module and its weights, if it has any."""
    folder.mkdir(exist_ok=True)
    checkpoints.write_json_file(folder, CONFIG, stated)
    if weights:
        checkpoints.write_tensors(folder, checkpoints.MODEL_FILE, weights)
