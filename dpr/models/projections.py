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

_EXPECTED = {
    "activation_function": "torch.nn.modules.linear.Identity",
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
}
_DEFAULTS = _EXPECTED | {"activation_function": "torch.nn.modules.activation.Tanh"}


def projected(tower: ForeignTower, folders: Sequence[Path]) -> ForeignTower:
    """The tower with the layers, one after the other, as its projection: linear layers after each other are one.

    Raises:
        CheckpointError: a layer is not linear, or damaged.
    """
    if not folders:
        return tower
    weight, bias = _layer(folders[0])
    for folder in folders[1:]:
        second, added = _layer(folder)
        if second.shape[1] != len(weight):
            raise CheckpointError(f"takes vectors of {second.shape[1]} numbers", file=folder, expected=f"the {len(weight)} it is given")
        weight, bias = second @ weight, second @ bias + added
    layer = {"encode_proj.weight": weight.float().contiguous(), "encode_proj.bias": bias.float()}
    return tower._replace(weights=tower.weights | layer, settings={**tower.settings, "projection_dim": len(weight)})


def _layer(folder: Path) -> tuple[Tensor, Tensor]:
    """Matrix and bias in fp64. A residual connection is added to the matrix: it is linear too."""
    stated = read_json(folder / CONFIG)
    if not isinstance(stated, dict):
        raise CheckpointError(f"is {describe(stated)}", file=folder / CONFIG, expected="an object")
    for name, usual in _EXPECTED.items():
        if (found := stated.get(name, _DEFAULTS[name])) != usual:
            expected = f"{usual}; the toolkit's projection is linear, and behind the pooling"
            raise CheckpointError(f"{name} is {describe(found)}", file=folder / CONFIG, expected=expected)
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
    return weight if residual is None else weight + residual, bias
