"""A model with adapters as a whole model, or its adapters as peft writes them."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import torch

from dpr.core.errors import InputError
from dpr.formats import checkpoints
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from dpr.models.model_folders import NAME, WEIGHTS
from dpr.storage.durable import durable_folder


def merged(model: BiEncoder) -> BiEncoder:
    """The model with each tower's adapter added to the weights of a backbone of its own; itself where it has
    no adapters.

    Weights are added in fp32 or more, and stay so: in bf16 the sum would lose much of an adapter.
    """
    if model.base is None:
        return model
    towers = [_merged_tower(tower) for tower in model.towers]
    whole = BiEncoder(
        towers[0], towers[-1], model.tensorizer, replace(model.settings, adapter="none"), model.options
    )
    whole.log_temperature = copy.deepcopy(model.log_temperature)
    return whole.train(model.training)


def _merged_tower(tower: Encoder) -> Encoder:
    whole = copy.deepcopy(tower)
    whole.to(torch.promote_types(next(tower.parameters()).dtype, torch.float32))
    adapter, whole.adapter = whole.adapter, None
    assert adapter is not None
    with torch.no_grad():
        for name, layer in adapter.layers.items():
            layer.merge(safe_merge=True, adapter_names=[adapter.name])
            whole.backbone.set_submodule(name, layer.get_base_layer())
    whole.requires_grad_(True)
    return whole


def write_adapters(model: BiEncoder, folder: Path, *, source: str) -> list[Path]:
    """Writes ``adapter_question`` and ``adapter_ctx`` (``adapter`` of a shared tower) into a new folder, each
    as peft writes one.

    Raises:
        InputError: the model has no adapters, or other trained weights that peft's format has no place for;
        or ``folder`` exists.
    """
    if model.base is None:
        raise InputError("has no adapters", file=source, hint="to=model writes the whole model")
    if others := [name for name in model.weights() if "lora_" not in name and name != "log_temperature"]:
        raise InputError(
            f"has other trained weights ({others[0]})",
            file=source,
            hint="to=model writes a model that has them all",
        )
    written = []
    names = ("adapter_question", "adapter_ctx") if len(model.towers) > 1 else ("adapter",)
    with durable_folder(folder) as temporary:
        for name, tower in zip(names, model.towers, strict=False):
            adapter = tower.adapter
            assert adapter is not None
            part = temporary / name
            part.mkdir()
            config = copy.deepcopy(adapter.config)
            config.inference_mode = True
            config.save_pretrained(str(part))
            weights = {
                NAME.format(layer=layer_name, kind=kind): getattr(layer, kind)[adapter.name].weight
                for layer_name, layer in adapter.layers.items()
                for kind in ("lora_A", "lora_B")
            }
            checkpoints.write_tensors(part, WEIGHTS, weights)
            model.tensorizer.save(part)
            written.append(folder / part.name)
    return written
