"""LoRA adapters as peft writes them: a folder for both sides, or one for each, with the model they belong
to."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from dpr.core.errors import CheckpointError, InputError
from dpr.data.tokenizer_files import check_files, load_tokenizer
from dpr.formats import checkpoints
from dpr.models.adapters import BaseModel
from dpr.models.backbones import base_model, load_backbone, read_object
from dpr.models.foreign_towers import ForeignTower, backbone_facts
from dpr.storage.strict_json import describe

WEIGHTS = "adapter_model.safetensors"
NAME = "base_model.model.{layer}.{kind}.weight"
"""Of a matrix, ``kind`` lora_A or lora_B."""
FOLDERS = (("adapter_question", "adapter_ctx"), ("adapter", "adapter"))
"""The names of the adapters of questions and of passages: one for each side, or one for both."""
_CONFIG = "adapter_config.json"
_NAME = re.compile(NAME.replace(".", r"\.").format(layer="(?P<layer>.+)", kind="(?P<kind>lora_[AB])"))
# Settings by which an adapter would be more than two matrices beside every layer of a kind.
_OTHERS = (
    "use_dora",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "lora_bias",
    "trainable_token_indices",
    "layer_replication",
)
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer_config.json")


def adapter_folders(folder: Path) -> tuple[Path, Path] | None:
    """The folders of the adapters of questions and passages, which may be the same; None where the folder
    holds no adapter alone."""
    check_files(folder)
    if (folder / _CONFIG).is_file():
        return None if list(folder.glob("model*.safetensors")) else (folder, folder)
    for names in FOLDERS:
        if all((folder / name / _CONFIG).is_file() for name in names):
            question, ctx = (folder / name for name in names)
            for each in (question, ctx):
                check_files(each, within=folder)
            return question, ctx
    return None


def adapter_towers(folders: tuple[Path, Path], base: str | None = None) -> tuple[ForeignTower, ForeignTower]:
    """The towers of two adapters, or one for both. ``base`` names the model they belong to in place of the
    name in their files.

    Raises:
        InputError: a file is absent or damaged, or the model they belong to is not on this machine.
        CheckpointError: an adapter is not plain LoRA.
    """
    question = _tower(folders[0], base)
    return question, question if folders[0] == folders[1] else _tower(folders[1], base)


def _tower(folder: Path, given: str | None) -> ForeignTower:
    stated = _stated(folder)
    layers, weights = _weights(folder)
    ranks = {tensor.shape[0] for name, tensor in weights.items() if name.endswith("lora_A.weight")}
    rank, alpha = stated.get("r"), stated.get("lora_alpha")
    is_number = (
        isinstance(alpha, int | float) and not isinstance(alpha, bool) and abs(alpha) <= sys.float_info.max
    )
    if type(rank) is not int or ranks != {rank} or not is_number:
        found = f"r is {describe(rank)} and lora_alpha {describe(alpha)}"
        raise CheckpointError(
            found, file=folder / _CONFIG, expected=f"numbers; the weights have rank {sorted(ranks)}"
        )
    stored = stated.get("base_model_name_or_path")
    if not given and (not isinstance(stored, str) or not stored):
        raise CheckpointError(
            "names no base model",
            file=folder / _CONFIG,
            hint="set encoder.pretrained_model_cfg=<folder of that model>",
        )
    with base_model(given, str(stored), folder) as name:
        backbone: Any = load_backbone(name)
        has_tokenizer = any((folder / file).is_file() for file in _TOKENIZER_FILES)
        tokenizer = load_tokenizer(folder if has_tokenizer else name)
    settings = {
        "adapter": "lora",
        "lora_rank": rank,
        "lora_alpha": float(stated["lora_alpha"]) * (math.sqrt(rank) if stated.get("use_rslora") else 1.0),
        "lora_targets": ",".join(sorted({layer.rpartition(".")[2] for layer in layers})),
    }
    return ForeignTower(
        folder, backbone.config, tokenizer, weights, *backbone_facts(backbone), settings, BaseModel(name, "")
    )


def _stated(folder: Path) -> dict[str, Any]:
    file = folder / _CONFIG
    stated = read_object(file)
    odd = [name for name in _OTHERS if stated.get(name)] + (
        ["bias"] if stated.get("bias", "none") != "none" else []
    )
    if stated.get("peft_type") != "LORA":
        odd = ["peft_type"]
    for name in odd:
        hint = "merge it (merge_and_unload of peft) and save the whole model"
        raise CheckpointError(
            f"{name} is {describe(stated.get(name))}", file=file, expected="plain LoRA", hint=hint
        )
    return stated


def _weights(folder: Path) -> tuple[set[str], dict[str, Tensor]]:
    """The layers that have an adapter, and its matrices by their names within a tower."""
    if not (folder / WEIGHTS).is_file():
        found = f"has no {WEIGHTS}" + (
            "; its adapter_model.bin is a pickle" if (folder / "adapter_model.bin").exists() else ""
        )
        raise InputError(found, file=folder, hint="save it again with save_pretrained of a recent peft")
    layers, weights = set(), {}
    for name, tensor in checkpoints.read_tensors(folder, WEIGHTS).items():
        if (parts := _NAME.fullmatch(name)) is None or tensor.dim() != 2:
            raise CheckpointError(
                f"holds {name}", file=folder / WEIGHTS, expected="lora_A and lora_B of linear layers"
            )
        layers.add(parts["layer"])
        weights[f"backbone.{parts['layer']}.{parts['kind']}.weight"] = tensor.float()
    return layers, weights
