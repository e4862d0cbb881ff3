"""Reader of a folder of peft: an adapter alone, without the model it belongs to."""

from __future__ import annotations

import math
import re
from typing import Any

from dpr.core.errors import CheckpointError, InputError
from dpr.data.tokenizer_files import load_tokenizer
from dpr.formats import checkpoints
from dpr.formats.model_folder import ModelFolder, folder_or_name
from dpr.formats.record_fields import is_finite_number
from dpr.models.adapters import BaseModel
from dpr.models.backbones import load_backbone
from dpr.models.folders.model_parts import ForeignTower, Given, ModelParts, backbone_metadata, bi_encoder_of
from dpr.models.sources import base_model
from dpr.storage.untrusted import describe

WEIGHTS = "adapter_model.safetensors"
NAME = "base_model.model.{layer}.{kind}.weight"
"""Name of an adapter's matrix in its file; ``kind`` is lora_A or lora_B."""
_CONFIG = "adapter_config.json"
_NAME = re.compile(NAME.replace(".", r"\.").format(layer="(?P<layer>.+)", kind="(?P<kind>lora_[AB])"))
# With any other value, an adapter would be more than two matrices beside every layer of a kind.
_PLAIN = {
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
    "lora_bias": False,
    "trainable_token_indices": None,
    "layer_replication": None,
}
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer_config.json")


def is_adapter(folder: ModelFolder) -> bool:
    """True if a folder holds an adapter alone, without the model it belongs to."""
    return folder.has(_CONFIG) and not list(folder.path.glob("model*.safetensors"))


def read_peft(folder: ModelFolder, given: Given) -> ModelParts:
    """Reads an adapter as one tower for both sides."""
    tower = adapter_tower(folder, given)
    return bi_encoder_of(tower, tower, given.settings)


def adapter_tower(folder: ModelFolder, given: Given = Given()) -> ForeignTower:  # noqa: B008 (immutable)
    """Reads the tower of an adapter, and the model that it belongs to.

    Raises:
        InputError: a file is absent or damaged, or the model it belongs to is not on this machine.
        CheckpointError: the adapter is not plain LoRA.
    """
    file = folder.path / _CONFIG
    stated = folder.settings(_CONFIG)
    folder.require_plain(
        _CONFIG, _PLAIN, "plain LoRA; merge_and_unload of peft makes a whole model of any other"
    )
    if not folder.has(WEIGHTS):
        raise InputError(f"has no {WEIGHTS}; pickles are not read", file=folder.path)
    layers = set()
    weights = {}
    ranks = set()
    for name, tensor in checkpoints.read_tensors(folder.path, WEIGHTS).items():
        parts = _NAME.fullmatch(name)
        if parts is None or tensor.dim() != 2:
            raise CheckpointError(
                f"holds {name}", file=folder.path / WEIGHTS, expected="lora_A and lora_B of linear layers"
            )
        layers.add(parts["layer"].rpartition(".")[2])
        weights[f"backbone.{parts['layer']}.{parts['kind']}.weight"] = tensor.float()
        if parts["kind"] == "lora_A":
            ranks.add(tensor.shape[0])
    rank = stated.get("r")
    alpha: Any = stated.get("lora_alpha")
    if type(rank) is not int or ranks != {rank} or not is_finite_number(alpha):
        raise CheckpointError(
            f"r is {describe(rank)} and lora_alpha {describe(alpha)}",
            file=file,
            expected=f"numbers; the weights have rank {sorted(ranks)}",
        )
    with base_model(given.base, stated.get("base_model_name_or_path"), file) as name:
        base = folder_or_name(name)
        backbone: Any = load_backbone(base, dropout=given.dropout, attention_dropout=given.attention_dropout)
        has_tokenizer = any(folder.has(file) for file in _TOKENIZER_FILES)
        rows = len(backbone.get_input_embeddings().weight)
        tokenizer = load_tokenizer(folder if has_tokenizer else base, rows=rows)
    settings = {
        "adapter": "lora",
        "lora_rank": rank,
        "lora_alpha": float(alpha) * (math.sqrt(rank) if stated.get("use_rslora") else 1.0),
        "lora_targets": ",".join(sorted(layers)),
    }
    return ForeignTower(
        folder.path,
        backbone.config,
        tokenizer,
        weights,
        *backbone_metadata(backbone),
        settings,
        BaseModel(name, ""),
        backbone,
    )
