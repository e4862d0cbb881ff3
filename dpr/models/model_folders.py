"""Model folders as the parts of a bi-encoder: checkpoints of the toolkit, Hugging Face and sentence-transformers folders.

What a folder states wins over settings. Code in a folder is never run, and pickled weights are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpr.core.errors import CheckpointError, ConfigError, InputError
from dpr.core.settings import part_of
from dpr.data.settings import TextSettings
from dpr.data.tensorizer import Tensorizer
from dpr.formats import checkpoints
from dpr.formats.json_records import describe
from dpr.models.adapters import BaseModel
from dpr.models.backbones import distinct_weights, load_backbone
from dpr.models.parts import ModelParts, present
from dpr.models.pooling import POOLINGS, is_user_defined
from dpr.models.pretrained import CONFIG, check_safetensors, read_config, refuse_impossible_sizes
from dpr.models.sentence_transformers import MODULES, sentence_transformers_settings
from dpr.models.settings import EncoderSettings
from dpr.models.trials import first_position

EXPECTED = (
    "a folder with model.safetensors and encoder_settings.json, a run folder, a Hugging Face folder with config.json and "
    "model.safetensors, or a checkpoint file of the original DPR"
)


def read_folder_parts(folder: Path, given: str | Path, settings: EncoderSettings) -> ModelParts:
    """The model in a folder; ``settings`` state what a third-party folder does not. CheckpointError if there is none or it is invalid."""
    try:
        if checkpoints.is_checkpoint(folder):
            return _checkpoint_parts(folder, settings.pooling)
        if (folder / CONFIG).is_file() or (folder / MODULES).is_file():
            return _foreign_parts(folder, settings)
    except CheckpointError:
        raise
    except InputError as error:
        raise CheckpointError(error.found, file=error.file, line=error.line, expected=error.expected, hint=error.hint) from error
    raise CheckpointError("is not a checkpoint", file=given, expected=EXPECTED)


def _checkpoint_parts(folder: Path, given_pooling: str) -> ModelParts:
    checkpoints.check_whole(folder)
    file = folder / checkpoints.SETTINGS_FILE
    stored = checkpoints.read_settings(folder)
    settings, temperature = _checked(stored, file), _temperature(stored.get("temperature"), file)
    if is_user_defined(settings.pooling) and settings.pooling != given_pooling:
        found = f"its pooling is the user-defined {settings.pooling}, and a file may not name code to run"
        raise CheckpointError(found, file=file, hint=f"if you trust that class, set encoder.pooling={settings.pooling}")
    encoder = folder / checkpoints.ENCODER_FOLDER
    weights = checkpoints.read_tensors(folder, checkpoints.MODEL_FILE)
    config = read_config(encoder)
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    base = None if settings.adapter == "none" else _base(stored.get("base"), settings, shapes, file)
    if base is None:
        refuse_impossible_sizes(config, shapes, encoder / CONFIG)
    tensorizer = _tensorizer(encoder, settings)
    learned = weights["log_temperature"].exp().tolist() if "log_temperature" in weights else None
    tensorizer.present(part_of(TextSettings, settings))
    learned_temperature = _temperature(learned, folder / checkpoints.MODEL_FILE)
    stated = frozenset(asdict(TextSettings()))
    return ModelParts(settings, config, tensorizer, weights, temperature, learned_temperature, base, stated)


def _base(stored: Any, settings: EncoderSettings, shapes: Mapping[str, tuple[int, ...]], file: Path) -> BaseModel:
    """The model that adapters belong to, by name and fingerprint; they may not be larger than the weights beside it."""
    if not isinstance(stored, dict) or not all(isinstance(stored.get(key), str) and stored[key] for key in BaseModel._fields):
        raise CheckpointError(f"base is {describe(stored)}", file=file, expected="name and fingerprint of the model its adapters belong to")
    if settings.lora_rank not in {shape[0] for shape in shapes.values() if shape}:
        raise CheckpointError(f"lora_rank is {settings.lora_rank}", file=file, expected="that of the weights")
    return BaseModel(stored["name"], stored["fingerprint"])


def _tensorizer(folder: Path, settings: EncoderSettings) -> Tensorizer:
    return Tensorizer.load(
        folder,
        sequence_length=settings.sequence_length,
        question_length=settings.question_length,
        append_eos=settings.append_eos,
    )


def _temperature(value: Any, file: Path) -> float | None:
    if value is not None and not (type(value) in (int, float) and 0 < value < float("inf")):
        raise CheckpointError(f"temperature is {describe(value)}", file=file, expected="a finite number above 0")
    return None if value is None else float(value)


def _checked(stored: Mapping[str, Any], file: Path) -> EncoderSettings:
    """The stored settings with their types checked; unknown ones, of newer versions, are left out."""
    known = {key: value for key, value in stored.items() if key in EncoderSettings.__dataclass_fields__}
    for key, value in known.items():
        default = getattr(EncoderSettings(), key)
        is_valid = type(value) is type(default) and (not isinstance(value, int) or 0 <= value <= 1 << 20)
        is_known = not is_valid or key != "pooling" or is_user_defined(value) or value in POOLINGS
        if not is_valid or not is_known or (key == "sequence_length" and value < 3):
            raise CheckpointError(f"{key} is {describe(value)}", file=file, expected=f"something like {describe(default)}")
    settings = replace(EncoderSettings(), **known)
    try:
        part_of(TextSettings, settings).check()
    except ConfigError as error:
        raise CheckpointError(str(error), file=file) from None
    return settings


def _foreign_parts(folder: Path, settings: EncoderSettings) -> ModelParts:
    """A Hugging Face folder, or one of sentence-transformers with its pooling and normalisation: one tower for both sides."""
    body, stated = folder, frozenset[str]()
    if (folder / MODULES).is_file():
        body, settings, stated = sentence_transformers_settings(folder, settings)
    if settings.projection_dim:
        found = f"encoder.projection_dim={settings.projection_dim}, but this folder has no projection"
        hint = "set it to 0; to train with one, start from encoder.pretrained_model_cfg=<the folder>"
        raise CheckpointError(found, file=folder, hint=hint)
    check_safetensors(body)
    backbone = load_backbone(str(body))
    config: Any = backbone.config
    if (config.is_encoder_decoder and hasattr(backbone, "decoder")) or config.model_type == "dpr":
        kind = type(backbone).__name__
        raise CheckpointError(f"is a {kind}", file=body, expected="one encoder that gives a vector for every token, such as a BERT")
    limit = getattr(config, "max_position_embeddings", settings.sequence_length) - (first_position(backbone) or 0)
    longest = min(settings.sequence_length, limit)
    settings = replace(settings, shared=True, adapter="none", sequence_length=longest, question_length=min(settings.question_length, limit))
    tensorizer = _tensorizer(body, settings)
    settings = present(tensorizer, settings)
    weights = {f"question_model.backbone.{name}": tensor for name, tensor in distinct_weights(backbone).items()}
    return ModelParts(settings, config, tensorizer, weights, stated=stated)
