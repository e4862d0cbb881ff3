"""The linear layer after the pooling in a sentence-transformers folder (``Dense``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dpr.core.errors import CheckpointError
from dpr.formats import checkpoints
from dpr.formats.durable import read_json
from dpr.formats.json_records import describe
from dpr.models.foreign_towers import ForeignTower
from dpr.models.pretrained import CONFIG, check_safetensors

_EXPECTED = {
    "activation_function": "torch.nn.modules.linear.Identity",
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
}
_DEFAULTS = _EXPECTED | {"activation_function": "torch.nn.modules.activation.Tanh"}


def projected(tower: ForeignTower, folder: Path) -> ForeignTower:
    """The tower with the layer as its projection. A residual connection is added to the matrix: it is linear too.

    Raises:
        CheckpointError: the layer is not linear, or damaged.
    """
    stated = read_json(folder / CONFIG)
    if not isinstance(stated, dict):
        raise CheckpointError(f"is {describe(stated)}", file=folder / CONFIG, expected="an object")
    for name, usual in _EXPECTED.items():
        if (found := stated.get(name, _DEFAULTS[name])) != usual:  # another, or one before the pooling
            expected = f"{usual}; the toolkit's projection is linear"
            raise CheckpointError(f"{name} is {describe(found)}", file=folder / CONFIG, expected=expected)
    check_safetensors(folder)
    file = folder / checkpoints.MODEL_FILE
    stored = {name: tensor.float() for name, tensor in checkpoints.read_tensors(folder, checkpoints.MODEL_FILE).items()}
    weight = stored.pop("linear.weight", None)
    if weight is None or weight.dim() != 2:
        raise CheckpointError("has no linear.weight", file=file, expected="a matrix")
    bias, residual = stored.pop("linear.bias", weight.new_zeros(len(weight))), stored.pop("residual.weight", None)
    if stated.get("use_residual"):
        residual = torch.eye(len(weight)) if residual is None else residual
    if stored or (residual is not None and residual.shape != weight.shape):
        raise CheckpointError(f"{min(stored, default='the residual connection')} does not fit", file=file, expected="one linear layer")
    weight = weight if residual is None else weight + residual
    layer: dict[str, Any] = {"encode_proj.weight": weight.contiguous(), "encode_proj.bias": bias}
    return tower._replace(weights=tower.weights | layer, settings={**tower.settings, "projection_dim": len(weight)})
