"""Adapters as folders in the form of peft."""

from __future__ import annotations

import copy
from pathlib import Path

from dpr.core.errors import InputError
from dpr.export.folders import write_once
from dpr.formats import checkpoints
from dpr.models.biencoder import BiEncoder
from dpr.models.folders.peft_adapter import NAME, WEIGHTS


def write_adapters(model: BiEncoder, folder: Path, *, source: str) -> None:
    """Writes ``adapter_question`` and ``adapter_ctx`` (``adapter`` of a shared tower) into a new folder, each
    in the form of peft. Does nothing if they are there already, made of the same model.

    Raises:
        InputError: the model has no adapters, or has other trained weights that peft's format cannot hold; or
        ``folder`` is something else.
    """
    if model.base is None:
        raise InputError("has no adapters", file=source, hint="to=model writes the whole model")
    if others := [name for name in model.weights() if "lora_" not in name and name != "log_temperature"]:
        raise InputError(
            f"has other trained weights ({others[0]})",
            file=source,
            hint="to=model writes a model that has them all",
        )
    names = ("adapter_question", "adapter_ctx") if len(model.towers) > 1 else ("adapter",)

    def fill(temporary: Path) -> None:
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

    write_once(folder, {"format": "peft", "model": model.fingerprint}, model, fill)
