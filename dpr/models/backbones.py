"""Backbones: third-party encoders without their poolers, with a given dropout. transformers reads them from a
folder or by a name that the user typed.

A folder determines what the model is: sizes, weights, vocabulary. It does not determine how the model is run:
attention, kernels, quantisation, parallel plans and code that a config names are dropped. Folders are read
without network access.
"""

from __future__ import annotations

import copy
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpr.core.distributed import current_ranks
from dpr.core.errors import InputError, first_line
from dpr.core.logs import get_logger, shows_bars, warn_once
from dpr.core.machine import overlapping, reading
from dpr.data.tokenizer_files import check_numbers
from dpr.formats.checkpoints import MODEL_FILE, read_tensors
from dpr.formats.model_folder import CONFIG, look
from dpr.models.properties import check_weights, set_dropout, without_running
from dpr.models.sources import HUB_NAME, local_model
from dpr.storage.durable import MANIFEST, read_manifest
from dpr.storage.untrusted import describe

logger = get_logger(__name__)

_MAX_SIZE = {
    "num_attention_heads": 1 << 12,
    "hidden_size": 1 << 17,
    "vocab_size": 1 << 24,
    "intermediate_size": 1 << 20,
}
_MAX_POSITIONS = 1 << 24


def read_config(source: str | os.PathLike[str]) -> Any:
    """Reads the config of a model, without the keys that say how it is run.

    Raises:
        InputError: there is none, it is damaged, or it asks for a model of impossible size.
    """
    from transformers import CONFIG_MAPPING, PretrainedConfig

    import dpr.models.static  # noqa: F401 (makes its family known to transformers)

    folder = Path(source)
    if folder.is_file():
        raise InputError("is a file", file=folder, expected="the folder of a model, or the name of one")
    file: str | Path = folder / CONFIG if folder.is_dir() else str(source)
    try:
        if folder.is_dir():
            values = look(source).value(CONFIG)
        else:
            with reading(str(source)):
                values = PretrainedConfig.get_config_dict(str(source))[0]
        check_numbers(values, file)
        names_code = bool(values.get("auto_map"))
        values = without_running(values)
        if values.get("model_type") not in list(CONFIG_MAPPING.keys()):
            raise InputError(
                f"model_type is {describe(values.get('model_type'))}",
                file=file,
                expected="a model family of transformers",
            )
        config = CONFIG_MAPPING[values["model_type"]].from_dict(values, name_or_path=str(source))
    except InputError:
        raise
    except Exception as error:  # transformers checks some values and fails on others
        is_missing = not folder.exists() and not HUB_NAME.fullmatch(str(source))
        reason = "there is no such folder" if is_missing else first_line(error)
        raise InputError(
            f"no model config could be loaded ({reason})",
            file=file,
            hint="set encoder.pretrained_model_cfg to a local model folder or to a model name that is in the"
            " Hugging Face cache",
        ) from error
    refuse_impossible_sizes(config, {}, file)
    if names_code:
        message = "%s names code for the model (auto_map), which is not run: it is read as a model of transformers (%s)"
        warn_once(logger, message, file, values["model_type"])
    return config


def refuse_impossible_sizes(config: Any, shapes: Mapping[str, tuple[int, ...]], file: str | Path) -> None:
    """Raises InputError if a config asks for a larger model than the weights beside it, so that no file of a
    few bytes can take all memory."""
    most = max((size for shape in shapes.values() for size in shape), default=0)
    limits = {name: most or limit for name, limit in _MAX_SIZE.items()}
    limits |= {"num_hidden_layers": len(shapes) or 1000, "max_position_embeddings": max(most, _MAX_POSITIONS)}
    for name, limit in limits.items():
        value = getattr(config, name, 1)
        # a static encoder (dpr.models.static)
        least = 0 if name == "num_hidden_layers" and config.model_type == "openai-gpt" else 1
        if value is not None and (type(value) is not int or not least <= value <= limit):
            limited = ", the size of the weights" if shapes else ""
            raise InputError(f"{name} is {describe(value)}", file=file, expected=f"1 to {limit}{limited}")


def load_weights(model_class: Any, source: str | os.PathLike[str], config: Any, **options: Any) -> Any:
    """Loads a model of ``model_class`` (one of transformers' Auto classes) in fp32 with the weights of
    ``source``.

    Raises:
        InputError: weights are damaged, missing, or of another shape than in ``config``.
    """
    folder = Path(source)
    if folder.is_dir() and (shapes := weight_shapes(folder)):
        refuse_impossible_sizes(config, shapes, folder / CONFIG)
    try:
        with reading(str(source)), quiet_loading(), _without_adapters():
            model, info = model_class.from_pretrained(
                str(source),
                config=config,
                dtype=torch.float32,
                trust_remote_code=False,
                output_loading_info=True,
                **options,
            )
    except Exception as error:
        reason = first_line(error)
        if type(error).__name__ == "UnpicklingError":  # torch's words advise to run whatever the file holds
            reason = "a damaged pickle, or one of more than tensors; save the model as safetensors"
        raise InputError(f"the weights could not be loaded ({reason})", file=str(source)) from error
    missing = sorted(info["missing_keys"])
    if missing or info.get("mismatched_keys"):
        raise InputError(
            f"{len(missing)} weights of {type(model).__name__} are missing or of another shape (first:"
            f" {', '.join(missing[:3])})",
            file=str(source),
            expected="a file with all weights of that model",
        )
    return model


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Returns shapes by name in the safetensors files of a folder. Raises InputError if a file is damaged or
    holds quantised weights."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(str(file), "pt") as opened:
                parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a dictionary)
                shapes |= {name: tuple(part.get_shape()) for name, part in parts.items()}
                decides = (name for name in parts if name.endswith((".weight", ".bias")))
                kinds = {str(parts[name].get_dtype()) for name in decides}
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"cannot be read ({first_line(error)})", file=file, expected="a safetensors file"
            ) from error
        if other := kinds - {"F64", "F32", "F16", "BF16"}:
            raise InputError(
                f"holds weights of type {min(other)}",
                file=file,
                expected="F32, F16, BF16 or F64; quantised models are not read",
            )
    return shapes


@overlapping
@contextmanager
def _without_adapters() -> Iterator[None]:
    """Keeps transformers from following an ``adapter_config.json``, which names a base model to look up.

    transformers follows it wherever peft is installed, and has no option against it; so peft seems absent
    inside the block.
    """
    from transformers.integrations import peft
    from transformers.models.auto import auto_factory

    modules: tuple[Any, ...] = (peft, auto_factory)
    originals = [module.is_peft_available for module in modules]
    try:
        for module in modules:
            module.is_peft_available = lambda: False
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            module.is_peft_available = original


@overlapping
@contextmanager
def quiet_loading() -> Iterator[None]:
    """Lets transformers report only errors inside the block, with a progress bar on the main rank's terminal
    alone.

    Otherwise its report names the pooler, which towers leave out on purpose. ``output_loading_info`` still
    lists missing weights.
    """
    from transformers.utils import logging

    level = logging.get_verbosity()
    has_bar = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not (current_ranks().is_main and shows_bars(sys.stderr)):
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bar:
            logging.enable_progress_bar()


def load_backbone(
    name_or_folder: str | os.PathLike[str],
    *,
    pretrained: bool = True,
    dropout: float | None = None,
    attention_dropout: float | None = None,
) -> nn.Module:
    """Loads a Hugging Face encoder in fp32, or makes one with random weights from its config. A folder of
    ``dpr new-encoder`` has no weights.

    ``dropout`` sets hidden and attention dropout (0 included; the original read 0 as the model's default),
    ``attention_dropout`` only the latter. Code in the folder is never run.

    Raises:
        InputError: the model cannot be loaded, is not an encoder, or weights it needs are missing from the
        file.
    """
    config = read_config(name_or_folder)
    if not pretrained or is_without_weights(name_or_folder):
        return backbone_from_config(config, dropout=dropout, attention_dropout=attention_dropout)
    if config.model_type == "static":
        static: Any = backbone_from_config(config)
        folder = local_model(str(name_or_folder))
        weights = read_tensors(folder, MODEL_FILE)
        check_weights(weights, static.state_dict(), folder)
        static.load_state_dict(weights)
        return static.eval()
    set_dropout(config, dropout, attention_dropout)
    backbone: nn.Module = load_weights(
        auto_class(config), name_or_folder, config, **_without_pooler(type(config))
    )
    _switch_off_dropout(backbone, dropout, attention_dropout)
    from dpr.models.static import static_if_layerless

    return static_if_layerless(backbone)


def is_without_weights(source: str | os.PathLike[str]) -> bool:
    """True if a folder has a config without weights: one of ``dpr new-encoder``, whose weights come with
    training, or one of a static encoder that was made by hand."""
    folder = Path(source)
    if not (folder / CONFIG).is_file() or any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")):
        return False
    if not (folder / MANIFEST).is_file():
        return bool(read_config(source).model_type == "static")
    try:
        return bool(read_manifest(folder)["metadata"].get("kind") == "encoder without weights")
    except InputError:  # of another program
        return False


def backbone_from_config(
    config: Any, *, dropout: float | None = None, attention_dropout: float | None = None
) -> nn.Module:
    """Makes a backbone with random weights. Each call copies the config, because models keep settings on it."""
    config = copy.deepcopy(config)
    if config.model_type == "static":
        from dpr.models.static import StaticBackbone

        config.dtype = torch.float32
        return StaticBackbone(config).float()
    set_dropout(config, dropout, attention_dropout)
    backbone = auto_class(config).from_config(
        config, dtype=torch.float32, trust_remote_code=False, **_without_pooler(type(config))
    )
    _switch_off_dropout(backbone, dropout, attention_dropout)
    return backbone


def _switch_off_dropout(backbone: nn.Module, dropout: float | None, attention_dropout: float | None) -> None:
    """Switches off dropout modules that the config does not name, if all dropout is to be off."""
    for module in backbone.modules() if dropout == 0 and not attention_dropout else ():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0


def auto_class(config: Any) -> Any:
    """Returns the Auto class whose models give a state for every token: for T5 and similar models, that of
    the encoder alone."""
    from transformers import (
        MODEL_FOR_TEXT_ENCODING_MAPPING,
        MODEL_MAPPING,
        AutoModel,
        AutoModelForTextEncoding,
    )

    encoder = MODEL_FOR_TEXT_ENCODING_MAPPING.get(type(config), None)
    return AutoModel if encoder in (None, MODEL_MAPPING.get(type(config), None)) else AutoModelForTextEncoding


def _without_pooler(config_class: type) -> dict[str, bool]:
    """Returns the option that leaves out the pooler. It is never used, and data-parallel training must have
    no unused parameters."""
    from transformers import AutoModel

    registered: Any = AutoModel._model_mapping.get(config_class, None)
    model_class = registered[0] if isinstance(registered, tuple) else registered
    has_pooler = model_class is not None and "add_pooling_layer" in inspect.signature(model_class).parameters
    return {"add_pooling_layer": False} if has_pooler else {}
