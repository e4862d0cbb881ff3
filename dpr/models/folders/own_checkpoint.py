"""Reader of a checkpoint folder of this toolkit."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpr.core.errors import CheckpointError, ConfigError
from dpr.data.settings import TextSettings
from dpr.data.tensorizer import Tensorizer
from dpr.formats import checkpoints
from dpr.formats.model_folder import CONFIG, ModelFolder, look
from dpr.formats.record_fields import is_finite_number
from dpr.models.adapters import BaseModel
from dpr.models.backbones import read_config, refuse_impossible_sizes
from dpr.models.folders.model_parts import Given, ModelParts
from dpr.models.pooling import is_user_defined
from dpr.models.settings import EncoderSettings
from dpr.storage.untrusted import describe

_LARGEST = 1 << 20


def read_own_checkpoint(stored_in: ModelFolder, given: Given) -> ModelParts:
    """Reads the model in a checkpoint. Of what was ``given``, it needs the pooling alone, if that is a class.

    Raises:
        CheckpointError: it is damaged, or of another version.
    """
    folder = stored_in.path
    checkpoints.check_whole(folder)
    file = folder / checkpoints.SETTINGS_FILE
    stored = checkpoints.read_settings(folder)
    if stored.get("pool_prompts") is False:
        raise CheckpointError(
            "its vectors leave the tokens of prompts out, which this version does not", file=file
        )
    # settings of newer versions are left out
    known = {key: value for key, value in stored.items() if key in EncoderSettings.__dataclass_fields__}
    settings = replace(EncoderSettings(), **known)
    try:
        settings.check_values("")
    except ConfigError as error:
        raise CheckpointError(str(error), file=file) from None
    if settings.projection_activation not in ("none", "tanh"):
        raise CheckpointError(
            f"projection_activation is {settings.projection_activation[:40]}",
            file=file,
            expected="none or tanh",
        )
    for key, value in known.items():
        if isinstance(value, int) and value > _LARGEST:  # such a projection would take all memory
            raise CheckpointError(f"{key} is {value}", file=file, expected=f"at most {_LARGEST}")
    if is_user_defined(settings.pooling) and settings.pooling != given.settings.pooling:
        raise CheckpointError(
            f"its pooling is the user-defined {settings.pooling}, and a file may not name code to run",
            file=file,
            hint=f"if you trust that class, set encoder.pooling={settings.pooling}",
        )
    encoder = look(folder / checkpoints.ENCODER_FOLDER)
    weights = checkpoints.read_tensors(folder, checkpoints.MODEL_FILE)
    config = read_config(encoder)
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    base = None
    if settings.adapter == "none":
        refuse_impossible_sizes(config, shapes, encoder.path / CONFIG)
    else:
        named = stored.get("base")
        texts: list[Any] = [named.get(key) for key in BaseModel._fields] if isinstance(named, dict) else []
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise CheckpointError(
                f"base is {describe(named)}",
                file=file,
                expected="name and fingerprint of the model its adapters belong to",
            )
        # adapters may not be larger than the weights beside them
        if settings.lora_rank not in {shape[0] for shape in shapes.values() if shape}:
            raise CheckpointError(
                f"lora_rank is {settings.lora_rank}", file=file, expected="that of the weights"
            )
        base = BaseModel(*texts)
    tensorizer = Tensorizer.load(
        encoder,
        sequence_length=settings.sequence_length,
        question_length=settings.question_length,
        append_eos=settings.append_eos,
    )
    tensorizer.set_text_settings(settings.part(TextSettings))
    learned = weights["log_temperature"].exp().tolist() if "log_temperature" in weights else None
    return ModelParts(
        settings,
        config,
        tensorizer,
        weights,
        temperature=_temperature(stored.get("temperature"), file),
        learned_temperature=_temperature(learned, folder / checkpoints.MODEL_FILE),
        base=base,
        stated=frozenset(asdict(TextSettings())),
    )


def _temperature(value: Any, file: Path) -> float | None:
    if value is not None and not (is_finite_number(value) and value > 0):
        raise CheckpointError(
            f"temperature is {describe(value)}", file=file, expected="a finite number above 0"
        )
    return None if value is None else float(value)
