"""The DPR classes of transformers: a folder of a question encoder and one of a context encoder, two BERTs read at their first token."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dpr.core.errors import CheckpointError, InputError
from dpr.data.tensorizer import load_tokenizer
from dpr.data.tokenizer_files import check_files
from dpr.formats import checkpoints
from dpr.models.foreign_towers import ForeignTower
from dpr.models.pretrained import CONFIG, check_safetensors, read_config, refuse_impossible_sizes, weight_shapes
from dpr.storage.durable import read_json

QUESTION, CTX = "question_encoder", "ctx_encoder"
EXPECTED = f"a folder that holds both: the folder of the question encoder as {QUESTION}, that of the context encoder as {CTX}"
# In files of earlier versions: a pooler that no vector passes, and a table of numbers that the model makes itself.
_UNUSED = ("pooler.", "embeddings.position_ids")


def is_dpr(folder: Path) -> bool:
    """Whether a folder is that of one of these classes."""
    if not (folder / CONFIG).is_file():
        return False
    config = read_json(folder / CONFIG)
    return isinstance(config, dict) and config.get("model_type") == "dpr"


def is_dpr_pair(folder: Path) -> bool:
    """Whether a folder holds that of a question encoder and that of a context encoder."""
    return all(is_dpr(folder / name) for name in (QUESTION, CTX))


def dpr_towers(folder: Path) -> tuple[ForeignTower, ForeignTower]:
    """The question and the context tower.

    Raises:
        InputError: a file is absent or damaged.
        CheckpointError: a folder holds the other encoder, or none.
    """
    question, ctx = (_tower(folder / name, name) for name in (QUESTION, CTX))
    return question, ctx


def _tower(folder: Path, name: str) -> ForeignTower:
    from transformers import BertConfig

    check_files(folder, within=folder.parent)
    check_safetensors(folder)
    given, shapes = read_config(folder), weight_shapes(folder)
    refuse_impossible_sizes(given, shapes, folder / CONFIG)
    prefix = f"{name}.bert_model."
    if not any(weight.startswith(prefix) for weight in shapes):
        kind = ", ".join(sorted({weight.partition(".")[0] for weight in shapes}))[:100] or "no weights"
        raise CheckpointError(f"holds {kind}", file=folder, expected=f"{name}; is it the folder of the other encoder?")
    values: dict[str, Any] = given.to_dict()
    width = values.pop("projection_dim", 0) or 0
    config = BertConfig.from_dict({key: value for key, value in values.items() if key not in ("model_type", "architectures")})
    weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        for weight, tensor in checkpoints.read_tensors(folder, file.name).items():
            own = weight.replace(prefix, "backbone.").replace(f"{name}.", "")
            if not own.removeprefix("backbone.").startswith(_UNUSED):
                weights[own] = tensor.float()
    if not isinstance(width, int):
        raise InputError("projection_dim is no number", file=folder / CONFIG)
    return ForeignTower(folder, config, _tokenizer(folder), weights, config.max_position_embeddings, settings={"projection_dim": width})


def _tokenizer(folder: Path) -> Any:
    """The tokenizer, as BERT's where its class is one of DPR's: some of these lower-case every text, whatever their file says."""
    file = folder / "tokenizer_config.json"
    stated = read_json(file) if os.path.lexists(file) else {}
    kind = stated.get("tokenizer_class", "DPR") if isinstance(stated, dict) else ""
    return load_tokenizer(folder, **({"tokenizer_type": "bert"} if str(kind).startswith("DPR") else {}))
