"""A model whose adapters are part of the weights."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from dpr.models.biencoder import BiEncoder


def merged(model: BiEncoder) -> BiEncoder:
    """Returns the model with each tower's adapter added to the weights of a backbone of its own; a model
    without adapters is returned as it is.

    Weights are added in fp32 or more, and stay so: in bf16 the sum would lose much of an adapter.
    """
    if model.base is None:
        return model
    towers = []
    for tower in model.towers:
        whole = copy.deepcopy(tower)
        whole.to(torch.promote_types(next(tower.parameters()).dtype, torch.float32))
        adapter = whole.adapter
        whole.adapter = None
        assert adapter is not None
        with torch.no_grad():
            for name, layer in adapter.layers.items():
                layer.merge(safe_merge=True, adapter_names=[adapter.name])
                whole.backbone.set_submodule(name, layer.get_base_layer())
        whole.requires_grad_(True)
        towers.append(whole)
    settings = replace(model.settings, adapter="none")
    merged_model = BiEncoder(towers[0], towers[-1], model.tensorizer, settings, model.options)
    merged_model.log_temperature = copy.deepcopy(model.log_temperature)
    return merged_model.train(model.training)
