"""The linear layers after the pooling in a sentence-transformers folder (``Dense``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from dpr.core.errors import CheckpointError
from dpr.formats import checkpoints
from dpr.formats.json_records import describe
from dpr.models.foreign_towers import ForeignTower
from dpr.models.pretrained import CONFIG, check_safetensors
from dpr.storage.durable import read_json

_INPUT = "sentence_embedding"
_ACTIVATIONS = {"torch.nn.modules.linear.Identity": "none", "torch.nn.modules.activation.Tanh": "tanh"}


def projected(tower: ForeignTower, folders: Sequence[Path]) -> ForeignTower:
    """The tower with the layers, one after the other, as its projection: linear layers after each other are one, and the last may have an
    activation.

    Raises:
        CheckpointError: a layer is not linear, or damaged.
    """
    if not folders:
        return tower
    weight, bias, activation = _layer(folders[0])
    for folder in folders[1:]:
        if activation != "none":
            raise CheckpointError("another Dense comes after its activation", file=folder.parent, expected="Tanh in the last Dense alone")
        second, added, activation = _layer(folder)
        if second.shape[1] != len(weight):
            raise CheckpointError(f"takes vectors of {second.shape[1]} numbers", file=folder, expected=f"the {len(weight)} it is given")
        weight, bias = second @ weight, second @ bias + added
    layer = {"encode_proj.weight": weight.float().contiguous(), "encode_proj.bias": bias.float()}
    return tower._replace(
        weights=tower.weights | layer, settings={**tower.settings, "projection_dim": len(weight), "projection_activation": activation}
    )


def _layer(folder: Path) -> tuple[Tensor, Tensor, str]:
    """Matrix and bias in fp64, and what follows. A residual connection without activation is added to the matrix: it is linear too."""
    stated = read_json(folder / CONFIG)
    if not isinstance(stated, dict):
        raise CheckpointError(f"is {describe(stated)}", file=folder / CONFIG, expected="an object")
    for name in ("module_input_name", "module_output_name"):
        if (given := stated.get(name) or _INPUT) != _INPUT:
            raise CheckpointError(
                f"{name} of this Dense is {describe(given)}", file=folder / CONFIG, expected=f"{_INPUT}, behind the pooling"
            )
    function = stated.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = _ACTIVATIONS.get(function) if isinstance(function, str) else None
    if activation is None or (activation != "none" and stated.get("use_residual")):
        beside = " with use_residual" if activation else ""
        found = f"activation_function of this Dense is {describe(function)}{beside}"
        raise CheckpointError(found, file=folder / CONFIG, expected="Identity, or Tanh without use_residual")
    check_safetensors(folder)
    file = folder / checkpoints.MODEL_FILE
    stored = {name: tensor.double() for name, tensor in checkpoints.read_tensors(folder, checkpoints.MODEL_FILE).items()}
    weight = stored.pop("linear.weight", None)
    if weight is None or weight.dim() != 2:
        raise CheckpointError("has no linear.weight", file=file, expected="a matrix")
    bias, residual = stored.pop("linear.bias", weight.new_zeros(len(weight))), stored.pop("residual.weight", None)
    if stated.get("use_residual"):
        residual = torch.eye(len(weight), dtype=weight.dtype) if residual is None else residual
    fits = bias.shape == weight.shape[:1] and (residual is None or residual.shape == weight.shape)
    if stored or not fits:
        found = f"{min(stored)} is not known" if stored else "its tensors do not fit each other"
        raise CheckpointError(found, file=file, expected="one linear layer")
    return weight if residual is None else weight + residual, bias, activation
