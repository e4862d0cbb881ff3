"""Checkpoint files of the original DPR: read as the parts of a bi-encoder, and the weights of such a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from dpr.core.errors import CheckpointError
from dpr.data.tensorizer import Tensorizer
from dpr.formats.original.checkpoints import DprCheckpoint, read_dpr_checkpoint
from dpr.models.backbones import base_model, read_config
from dpr.models.parts import ModelParts
from dpr.models.settings import EncoderSettings

TOWERS = ("question_model", "ctx_model")
OVERRIDE = "encoder.pretrained_model_cfg=<local folder with config.json and the tokenizer's files>"


def _toolkit_name(name: str) -> str:
    """The toolkit's name of one of the file's weights."""
    tower, _, rest = name.partition(".")
    return name if tower not in TOWERS or rest.startswith("encode_proj.") else f"{tower}.backbone.{rest}"


def read_model_parts(
    path: Path,
    *,
    pretrained_model_cfg: str | None = None,
    special_tokens: Sequence[str] = (),
    trailing_sep: bool = True,
) -> ModelParts:
    """Reads a checkpoint file of the original.

    It has no backbone config and no tokenizer: these come from ``pretrained_model_cfg`` or, without one, from
    the name stored in the file, which is only looked up on this machine, so that a file cannot cause a
    download.

    Raises:
        CheckpointError: the file is not such a checkpoint, its towers are not Hugging Face's, or the name in
        it is not on this machine.
    """
    stored = read_dpr_checkpoint(path)
    kind = stored.settings.get("encoder_model_type")
    if isinstance(kind, str) and not kind.startswith("hf_"):
        raise CheckpointError(
            f"encoder_model_type is {kind[:40]}",
            file=path,
            expected="hf_bert; other kinds of towers are not read",
        )
    config, tensorizer = _backbone_parts(path, stored, pretrained_model_cfg, special_tokens)
    settings = EncoderSettings(
        projection_dim=_projection_dim(path, stored),
        sequence_length=stored.sequence_length,
        dpr_trailing_sep=trailing_sep,
    )
    return ModelParts(
        settings, config, tensorizer, {_toolkit_name(name): tensor for name, tensor in stored.weights.items()}
    )


def _backbone_parts(
    path: Path, stored: DprCheckpoint, override: str | None, special_tokens: Sequence[str]
) -> tuple[Any, Tensorizer]:
    if not override and not stored.pretrained_model_cfg:
        raise CheckpointError("names no encoder", file=path, hint=f"set {OVERRIDE}")
    with base_model(override, stored.pretrained_model_cfg or "", path) as name:
        config = read_config(name)
        tensorizer = Tensorizer.load(
            name,
            sequence_length=stored.sequence_length,
            do_lower_case=stored.do_lower_case,
            special_tokens=special_tokens,
        )
    return config, tensorizer


def _projection_dim(path: Path, stored: DprCheckpoint) -> int:
    """The width of the projection in the weights; CheckpointError if the settings of the file differ."""
    widths = {
        int(tensor.shape[0])
        for name, tensor in stored.weights.items()
        if name.endswith(".encode_proj.weight")
    }
    stated = stored.settings.get("projection_dim") or 0
    if len(widths) > 1 or (widths and stated not in (0, *widths)) or (stated and not widths):
        raise CheckpointError(
            f"projection_dim is {stated}, but encode_proj has {sorted(widths) or 'no weights'}", file=path
        )
    return widths.pop() if widths else 0


def file_weights(weights: Mapping[str, Tensor], *, shared: bool) -> dict[str, Tensor]:
    """Weights by the file's names, with what the original's loader requires: both towers, and poolers (zero;
    nothing uses them)."""
    named = {
        name.replace("_model.backbone.", "_model.", 1): tensor
        for name, tensor in weights.items()
        if name.startswith(TOWERS)
    }
    if shared:
        named |= {
            name.replace("question_model.", "ctx_model.", 1): tensor.clone() for name, tensor in named.items()
        }
    for tower in TOWERS:
        words = named[f"{tower}.embeddings.word_embeddings.weight"]
        named[f"{tower}.pooler.dense.weight"] = words.new_zeros(words.shape[1], words.shape[1])
        named[f"{tower}.pooler.dense.bias"] = words.new_zeros(words.shape[1])
    return named
