"""Folders that hold a model, as the parts of a bi-encoder: our checkpoints, folders of Hugging Face and of sentence-transformers.

What a folder says wins over settings. Code in a folder is never run, and pickled weights are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpr.core.errors import CheckpointError, InputError
from dpr.data.tensorizer import Tensorizer
from dpr.formats import checkpoints
from dpr.formats.durable import read_json
from dpr.formats.json_records import describe
from dpr.models.backbones import distinct_weights, load_backbone
from dpr.models.dpr_checkpoint import ModelParts
from dpr.models.pooling import POOLINGS, is_user_defined
from dpr.models.pretrained import read_config, refuse_impossible_sizes
from dpr.models.settings import EncoderSettings
from dpr.models.trials import first_position

EXPECTED = (
    "a folder with model.safetensors and encoder_settings.json, a run folder, a Hugging Face folder with config.json and "
    "model.safetensors, or a checkpoint file of the original DPR"
)
_CONFIG = "config.json"
_MODULES = "modules.json"
_LONGEST_CONTEXT = 1 << 17


def read_folder_parts(folder: Path, given: str | Path, settings: EncoderSettings) -> ModelParts:
    """The model in a folder; ``settings`` say what a folder of others does not.

    Raises:
        CheckpointError: it holds none, or one that cannot be read.
    """
    try:
        if checkpoints.is_checkpoint(folder):
            return _checkpoint_parts(folder, settings.pooling)
        if (folder / _CONFIG).is_file() or (folder / _MODULES).is_file():
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
    refuse_impossible_sizes(config, {name: tuple(tensor.shape) for name, tensor in weights.items()}, encoder / _CONFIG)
    tensorizer = _tensorizer(encoder, settings)
    learned = weights["log_temperature"].exp().tolist() if "log_temperature" in weights else None
    return ModelParts(settings, config, tensorizer, weights, temperature, _temperature(learned, folder / checkpoints.MODEL_FILE))


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
    """Settings of the types they must have; unknown ones, of newer versions, are left out."""
    known = {key: value for key, value in stored.items() if key in EncoderSettings.__dataclass_fields__}
    for key, value in known.items():
        default = getattr(EncoderSettings(), key)
        is_right = type(value) is type(default) and (not isinstance(value, int) or 0 <= value <= 1 << 20)
        if (
            not is_right
            or (key == "pooling" and not is_user_defined(value) and value not in POOLINGS)
            or (key == "sequence_length" and value < 3)
        ):
            raise CheckpointError(f"{key} is {describe(value)}", file=file, expected=f"something like {describe(default)}")
    return replace(EncoderSettings(), **known)


def _foreign_parts(folder: Path, settings: EncoderSettings) -> ModelParts:
    """A Hugging Face folder, or one of sentence-transformers with its pooling and normalisation: one tower for both sides."""
    body, settings = _as_sentence_transformers_says(folder, settings) if (folder / _MODULES).is_file() else (folder, settings)
    if settings.projection_dim:
        found = f"encoder.projection_dim={settings.projection_dim}, but this folder has no projection"
        raise CheckpointError(
            found, file=folder, hint="set it to 0; to train with one, start from encoder.pretrained_model_cfg=<the folder>"
        )
    if not any(body.glob("*.safetensors")):
        found = "has no model.safetensors" + ("; its pytorch_model.bin is a pickle" if any(body.glob("*.bin")) else "")
        raise CheckpointError(found, file=body, hint="save the model again with save_pretrained of a recent transformers")
    backbone = load_backbone(str(body))
    config: Any = backbone.config
    if (config.is_encoder_decoder and hasattr(backbone, "decoder")) or config.model_type == "dpr":
        kind = type(backbone).__name__
        raise CheckpointError(f"is a {kind}", file=body, expected="one encoder that gives a vector for every token, such as a BERT")
    limit = getattr(config, "max_position_embeddings", settings.sequence_length) - (first_position(backbone) or 0)
    longest = min(settings.sequence_length, limit)
    settings = replace(settings, shared=True, sequence_length=longest, question_length=min(settings.question_length, longest))
    tensorizer = _tensorizer(body, settings)
    weights = {f"question_model.backbone.{name}": tensor for name, tensor in distinct_weights(backbone).items()}
    return ModelParts(settings, config, tensorizer, weights)


def _as_sentence_transformers_says(folder: Path, settings: EncoderSettings) -> tuple[Path, EncoderSettings]:
    """The folder of the encoder, and the settings with the pooling, the normalisation and the length of the modules."""
    modules = read_json(folder / _MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError("is no list of modules", file=folder / _MODULES)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer"], ["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        found = f"the modules are {', '.join(kinds)[:100] or 'none'}"
        raise CheckpointError(
            found, file=folder / _MODULES, expected="Transformer, Pooling (cls, mean, weightedmean, max, lasttoken) and perhaps Normalize"
        )
    places = [_inside(folder, module.get("path")) for module in modules]
    settings = replace(settings, normalize=settings.normalize or "Normalize" in kinds)
    if "Pooling" in kinds:
        settings = replace(settings, pooling=_pooling(places[1] / _CONFIG))
    # The library keeps the length in the tokenizer's file, earlier versions in one of their own, which goes before.
    for file in (
        folder / "config_sentence_transformers.json",
        places[0] / "tokenizer_config.json",
        places[0] / "sentence_bert_config.json",
    ):
        said = read_json(file) if file.is_file() else {}
        if not isinstance(said, dict):
            raise CheckpointError(f"is {describe(said)}", file=file, expected="an object")
        if said.get("default_prompt_name"):
            raise CheckpointError("a prompt is put before every text (default_prompt_name)", file=file, expected="no default prompt")
        length = said.get("max_seq_length", said.get("model_max_length"))
        if isinstance(length, int) and not isinstance(length, bool) and 3 <= length <= _LONGEST_CONTEXT:
            settings = replace(settings, sequence_length=length)
    return places[0], settings


def _inside(folder: Path, path: Any) -> Path:
    if not isinstance(path, str) or Path(path).name != path or path == "..":
        raise CheckpointError(f"the path {describe(path)} of a module", file=folder / _MODULES, expected="the name of a folder beside it")
    return folder / path


def _pooling(file: Path) -> str:
    said = read_json(file)
    if not isinstance(said, dict):
        raise CheckpointError(f"is {describe(said)}", file=file, expected="an object")
    mode = said.get("pooling_mode")
    chosen = [mode] if isinstance(mode, str) else [key for key, value in said.items() if key.startswith("pooling_mode_") and value is True]
    kinds = {f"pooling_mode_{kind}_token{plural}": kind for kind, plural in (("cls", ""), ("mean", "s"), ("max", "s"))}
    kinds |= {"weightedmean": "weighted_mean", "pooling_mode_weightedmean_tokens": "weighted_mean"}
    kinds |= {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last", "pooling_mode_lasttoken": "last"}
    if len(chosen) != 1 or chosen[0] not in kinds:
        raise CheckpointError(
            f"pooling by {', '.join(map(str, chosen))[:100] or 'nothing'}",
            file=file,
            expected="cls, mean, weighted mean, max or last token",
        )
    return kinds[chosen[0]]
