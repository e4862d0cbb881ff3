"""Backbones: third-party encoders without their poolers, with a given dropout. transformers reads them from a
folder or by a name that a person typed.

A folder determines what the model is: sizes, weights, vocabulary. It does not determine how the model is run:
attention, kernels, quantisation, parallel plans and code that a config names are dropped. Folders are read
without network access.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpr.core.distributed import current_ranks
from dpr.core.errors import CheckpointError, InputError, first_line
from dpr.core.logs import shows_bars
from dpr.core.machine import no_downloads, overlapping, reading
from dpr.core.paths import texts_in, user_path
from dpr.data.tokenizer_files import check_files, check_numbers, is_read
from dpr.formats.run_folders import resolve_checkpoint
from dpr.storage.durable import MANIFEST, read_json, read_manifest
from dpr.storage.untrusted import describe, is_below

CONFIG = "config.json"
# Keys of a config that say how a model is run, not what it is.
_RUNNING = re.compile(
    r"_?(attn|experts)_implementation(_internal)?|auto_map|quantization_config|fusion_config|kernel_config|use_kernels|hub_kernels"
    r"|distributed_config|device_map|tp_size|(base_model_)?(tp|pp|ep)_plan"
    r"|transformers_weights|output_attentions|output_hidden_states|return_dict|use_return_dict|torchscript|chunk_size_feed_forward|_name_or_path|name_or_path"
)
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_FETCHED = ["*.safetensors", "*.json", "*.txt", "*.model"]
_NAMING = re.compile(r"(modules|(router|tokenizer|adapter)_config|encoder_settings|.*\.index)\.json")
_TOWERS = ("encoder", "question_encoder", "ctx_encoder")
_MAX_SIZE = {
    "num_attention_heads": 1 << 12,
    "hidden_size": 1 << 17,
    "vocab_size": 1 << 24,
    "intermediate_size": 1 << 20,
}
_MAX_POSITIONS = 1 << 24


def read_object(file: Path) -> dict[str, Any]:
    """Returns the settings in a file; empty if there is none. Raises CheckpointError if it holds no object."""
    found = read_json(file) if os.path.lexists(file) else {}  # an existing path must be a file
    if not isinstance(found, dict):
        raise CheckpointError(f"is {describe(found)}", file=file, expected="an object")
    return found


def require_plain(stated: Mapping[str, Any], plain: Mapping[str, Any], file: Path, expected: str) -> None:
    """Raises CheckpointError if one of these settings is stated and is not the ``plain`` one."""
    for name, value in plain.items():
        if stated.get(name) and stated[name] != value:
            raise CheckpointError(f"{name} is {describe(stated[name])}", file=file, expected=expected)


def local_model(name: str | Path) -> Path:
    """Returns the file or folder of a model that a person named.

    For a name that is none here, this is the snapshot of the hub's model, fetched or in the cache, without
    pickles and code. A name without a slash is first tried among those of sentence-transformers, as that
    library does.

    Raises:
        CheckpointError: there is neither a file or folder nor such a model.
    """
    path = user_path(name)
    is_below_here = "/" in str(name) and path.parent.is_dir()
    if os.path.lexists(path) or is_below_here or not _HUB_NAME.fullmatch(str(name)):
        return path
    return snapshot_of(str(name))


@cache  # all that a process reads is of one revision
def snapshot_of(name: str) -> Path:
    """Returns the snapshot of a model of the hub.

    Raises:
        CheckpointError: there is none.
    """
    from huggingface_hub import constants, snapshot_download

    with reading(name):
        for repository in [name] if "/" in name else [f"sentence-transformers/{name}", name]:
            try:
                return Path(snapshot_download(repository, allow_patterns=_FETCHED))
            except Exception as error:  # no such model, no right to it, no network, no room
                reason = first_line(error)
        found = f"there is no such file or folder here, and the hub gives no such model ({reason})"
        hint = "is the name right?"
        if constants.HF_HUB_OFFLINE:
            found = (
                "there is no such file or folder here, no such model in the cache of the hub, and no network"
            )
            hint = f"fetch it where there is one (hf download {repository}), or name a folder"
    raise CheckpointError(found, file=name, hint=hint)


def files_of_model(path: Path) -> dict[str, Path]:
    """Returns the files that a model is read from, by their names in its folder: those there, those in
    folders that they name, and those of the model that an adapter builds on. Other files may come and go,
    such as a run that was trained from the model and written into its folder."""
    found: dict[str, Path] = {}
    seen = set()
    places = [("", resolve_checkpoint(path))]
    for name, place in places:  # grows in the loop
        if os.path.isdir(place) and place.resolve() not in seen:
            seen.add(place.resolve())
            inner = [each for each in sorted(os.listdir(place)) if is_read(each) or each in _TOWERS]
            places += [(os.path.join(name, each), place / each) for each in inner]
        if not os.path.isfile(place) or name in found:
            continue
        found[name] = place
        own = place.parent.resolve() / place.name
        if own in seen or not _NAMING.fullmatch(place.name):
            continue
        seen.add(own)
        stated = read_json(place)
        for text in filter(is_below, texts_in(stated)):
            places.append((os.path.normpath(os.path.join(name, "..", text)), place.parent / text))
        if isinstance(stated, dict):
            # as this toolkit and as peft name the model that an adapter builds on
            for named in texts_in([stated.get("base"), stated.get("base_model_name_or_path")]):
                with suppress(CheckpointError), base_model(None, named, place) as base:
                    places.append((f"{name}: {base}", local_model(base)))
    return dict(sorted(found.items()))


@contextmanager
def base_model(given: str | None, stored: Any, file: Path) -> Iterator[str]:
    """Yields the name of a model that another file builds on: ``given`` by a person, else the one ``stored``
    in the file. The latter is looked up on this machine only, so that no file can cause a download.

    Raises:
        CheckpointError: no name is stored, or the model is not here or cannot be loaded.
    """
    hint = "set encoder.pretrained_model_cfg=<folder of that model, with config.json and tokenizer>"
    if not given and not (isinstance(stored, str) and stored):
        raise CheckpointError("names no encoder that it builds on", file=file, hint=hint)
    try:
        with nullcontext() if given else no_downloads():
            yield given or stored
    except (InputError, OSError) as error:  # OSError: a name of a thousand letters
        if given:
            raise
        reason = error.found if isinstance(error, InputError) else first_line(error)
        raise CheckpointError(
            f"it builds on {stored[:100]}, which cannot be loaded on this machine ({reason})",
            file=file,
            hint=hint,
        ) from error


def read_config(source: str | Path) -> Any:
    """Reads the config of a model, without the keys that say how it is run.

    Raises:
        InputError: there is none, it is damaged, or it asks for a model of impossible size.
    """
    from transformers import CONFIG_MAPPING, PretrainedConfig

    import dpr.models.static  # noqa: F401 (makes its family known to transformers)

    folder = Path(source)
    if folder.is_file():
        raise InputError("is a file", file=source, expected="the folder of a model, or the name of one")
    file: str | Path = folder / CONFIG if folder.is_dir() else source
    try:
        if folder.is_dir():
            check_files(folder)
            values = read_json(folder / CONFIG)
        else:
            with reading(source):
                values = PretrainedConfig.get_config_dict(str(source))[0]
        check_numbers(values, file)
        values = without_running(values)
        if values.get("model_type") not in list(CONFIG_MAPPING.keys()):
            raise InputError(
                f"model_type is {describe(values.get('model_type'))}",
                file=file,
                expected="a family that transformers knows",
            )
        config = CONFIG_MAPPING[values["model_type"]].from_dict(values, name_or_path=str(source))
    except InputError:
        raise
    except Exception as error:  # transformers checks some values and fails on others
        is_missing = not folder.exists() and not _HUB_NAME.fullmatch(str(source))
        reason = "there is no such folder" if is_missing else first_line(error)
        raise InputError(
            f"no model config could be loaded ({reason})",
            file=file,
            hint="set encoder.pretrained_model_cfg to a local model folder or to a model name that is in the"
            " Hugging Face cache",
        ) from error
    refuse_impossible_sizes(config, {}, file)
    return config


def without_running(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a config, nested ones included, without those that say how a model is run."""
    kept = {name: value for name, value in values.items() if not _RUNNING.fullmatch(name)}
    return {
        name: without_running(value) if isinstance(value, dict) else value for name, value in kept.items()
    }


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


def load_weights(model_class: Any, source: str | Path, config: Any, **options: Any) -> Any:
    """Loads a model of ``model_class`` (one of transformers' Auto classes) in fp32 with the weights of
    ``source``.

    Raises:
        InputError: weights are damaged, missing, or of another shape than in ``config``.
    """
    folder = Path(source)
    if folder.is_dir() and (shapes := weight_shapes(folder)):
        refuse_impossible_sizes(config, shapes, folder / CONFIG)
    try:
        with reading(source), quiet_loading(), _without_adapters():
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
        raise InputError(f"the weights could not be loaded ({reason})", file=source) from error
    missing = sorted(info["missing_keys"])
    if missing or info.get("mismatched_keys"):
        raise InputError(
            f"{len(missing)} weights of {type(model).__name__} are missing or of another shape (first:"
            f" {', '.join(missing[:3])})",
            file=source,
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


def check_safetensors(folder: Path) -> None:
    """Raises CheckpointError if a folder has no safetensors file, because pickled weights are not read.
    Raises InputError as ``check_files`` does."""
    check_files(folder)
    if not any(folder.glob("*.safetensors")):
        found = "has no model.safetensors" if folder.exists() else "there is no such folder"
        if any(folder.glob("*.bin")):
            found += "; its pytorch_model.bin is a pickle"
        hint = "save the model again with save_pretrained of a recent transformers"
        raise CheckpointError(found, file=folder, hint=hint)


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
    name_or_folder: str,
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
    if not pretrained or is_without_weights(Path(name_or_folder)):
        return backbone_from_config(config, dropout=dropout, attention_dropout=attention_dropout)
    set_dropout(config, dropout, attention_dropout)
    backbone: nn.Module = load_weights(
        auto_class(config), name_or_folder, config, **_without_pooler(type(config))
    )
    _switch_off_dropout(backbone, dropout, attention_dropout)
    from dpr.models.static import static_if_layerless

    return static_if_layerless(backbone)


def is_without_weights(folder: Path) -> bool:
    """True if a folder has a config without weights: one of ``dpr new-encoder``, whose weights come with
    training, or one of a static encoder that was made by hand."""
    if not (folder / CONFIG).is_file() or any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")):
        return False
    if not (folder / MANIFEST).is_file():
        return bool(read_config(folder).model_type == "static")
    try:
        return bool(read_manifest(folder)["metadata"].get("kind") == "encoder without weights")
    except InputError:  # of another program
        return False


def backbone_from_config(
    config: Any, *, dropout: float | None = None, attention_dropout: float | None = None
) -> nn.Module:
    """Makes a backbone with random weights. Each call copies the config, because models keep settings on it."""
    config = copy.deepcopy(config)
    set_dropout(config, dropout, attention_dropout)
    backbone = auto_class(config).from_config(
        config, dtype=torch.float32, trust_remote_code=False, **_without_pooler(type(config))
    )
    _switch_off_dropout(backbone, dropout, attention_dropout)
    return backbone


# Probabilities of heads, which no vector passes through, and of skipping whole layers.
_NO_DROPOUT_OF_TOWERS = re.compile("classif|summary|pooler|qa_|layer_?drop|path|token")


def set_dropout(config: Any, dropout: float | None, attention_dropout: float | None = None) -> None:
    """Sets every dropout probability of a config, those of attention to ``attention_dropout`` if given."""
    of_attention = dropout if attention_dropout is None else attention_dropout
    for key, probability in (("encoder.dropout", dropout), ("encoder.attention_dropout", of_attention)):
        for name in _dropout_names(config)[key] if probability is not None else ():
            setattr(config, name, probability)


def dropout_of(config: Any) -> dict[str, float]:
    """Returns the probabilities of a config by setting, the largest if a config has several."""
    return {
        key: max([getattr(config, name) or 0.0 for name in names], default=0.0)
        for key, names in _dropout_names(config).items()
    }


# Keys of a config that affect no vector: of heads, of how files are written, and of dropout, which has
# settings.
_UNDECIDING = re.compile(
    r"architectures|(torch_)?dtype|transformers_version|(id2)?label(2id)?|problem_type|use_cache|.*drop.*|_.*"
)


def deciding_config(config: Any) -> dict[str, Any]:
    """Returns the keys of a config that affect a vector, with their values, where these are not the default
    of its family.

    A version of transformers that adds a key with a default does not change the result.
    """
    defaults: dict[str, Any] = {}
    with suppress(Exception):  # some families have no default
        defaults = type(config)().to_dict()
    values = without_running(
        {name: value for name, value in config.to_dict().items() if not _UNDECIDING.fullmatch(name)}
    )
    return {name: value for name, value in values.items() if value != defaults.get(name)}


def _dropout_names(config: Any) -> dict[str, list[str]]:
    """Returns the names of a config's dropout probabilities by setting; families differ (``resid_pdrop``,
    ``dropout_rate``, ...)."""
    names: dict[str, list[str]] = {"encoder.dropout": [], "encoder.attention_dropout": []}
    for name, value in config.to_dict().items():
        if (
            "drop" in name
            and not _NO_DROPOUT_OF_TOWERS.search(name)
            and (value is None or type(value) in (int, float))
        ):
            names["encoder.attention_dropout" if "att" in name else "encoder.dropout"].append(name)
    return names


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


def distinct_weights(module: nn.Module) -> dict[str, Tensor]:
    """Returns the state of a module with each shared tensor once, under its first name."""
    names = {name for named in (module.named_parameters(), module.named_buffers()) for name, _ in named}
    return {name: tensor for name, tensor in module.state_dict().items() if name in names}


def check_vocabulary(tokenizer: Any, model: Any, file: str | Path | None) -> None:
    """Raises CheckpointError if a tokenizer has tokens that its model has no row for."""
    rows = len(model.get_input_embeddings().weight)
    largest = max(tokenizer.get_vocab().values())
    if largest >= rows:
        raise CheckpointError(
            f"its tokenizer has tokens up to number {largest}, but the model has embeddings of {rows}",
            file=file,
            hint="copy the tokenizer that belongs to the model into its folder",
        )


def check_weights(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: Path) -> None:
    """Raises CheckpointError unless the weights found in ``source`` have the names and shapes of the expected
    ones."""
    shared = expected.keys() & found.keys()
    wrong = {
        "missing": sorted(expected.keys() - shared),
        "not known": sorted(found.keys() - shared),
        "of another shape": sorted(name for name in shared if expected[name].shape != found[name].shape),
    }
    if problems := [f"{len(names)} {what}: {', '.join(names[:3])}" for what, names in wrong.items() if names]:
        raise CheckpointError(
            f"the weights do not fit this model ({'; '.join(problems)})",
            file=source,
            hint="was it written with other encoder.* settings?",
        )
