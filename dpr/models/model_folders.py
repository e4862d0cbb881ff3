"""Which file or folder is what, and a bi-encoder made of it: checkpoints of the toolkit and of the original
DPR, folders of Hugging Face and sentence-transformers, adapters of peft.

What a folder states wins over settings. Code in a folder is never run, and pickled weights are not read.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from dpr.core.errors import CheckpointError, ConfigError, DprError, InputError
from dpr.data.settings import TextSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import SPACED_TITLE
from dpr.data.tokenizer_files import check_files, load_tokenizer
from dpr.formats import checkpoints
from dpr.formats.original.checkpoints import DprCheckpoint, read_dpr_checkpoint
from dpr.models.adapters import BaseModel, check_start, load_base
from dpr.models.backbones import (
    CONFIG,
    backbone_from_config,
    base_model,
    load_backbone,
    read_config,
    read_object,
    refuse_impossible_sizes,
)
from dpr.models.encoder import Encoder, ModelParts, build_towers
from dpr.models.foreign_towers import (
    DPR_PAIR,
    ForeignTower,
    backbone_metadata,
    backbone_tower,
    dpr_towers,
    is_dpr,
    is_dpr_pair,
    joined,
    marks_segments,
    projected,
    static_tower,
)
from dpr.models.pooling import is_user_defined
from dpr.models.sentence_transformers import (
    MODULES,
    SIDES,
    STATIC,
    Modules,
    described_settings,
    read_modules,
    stated_length,
    tokenizer_length,
)
from dpr.models.settings import EncoderSettings, GivenTextSettings, TowerOptions
from dpr.storage.untrusted import describe

WEIGHTS = "adapter_model.safetensors"
NAME = "base_model.model.{layer}.{kind}.weight"
"""Of a matrix, ``kind`` lora_A or lora_B."""
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
_LARGEST = 1 << 20
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer_config.json")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter alone, without the model it belongs to."""
    check_files(folder)
    return (folder / _CONFIG).is_file() and not list(folder.glob("model*.safetensors"))


def adapter_tower(folder: Path, given: str | None = None) -> ForeignTower:
    """The tower of an adapter. ``given`` names the model it belongs to in place of the name in its file.

    Raises:
        InputError: a file is absent or damaged, or the model it belongs to is not on this machine.
        CheckpointError: the adapter is not plain LoRA.
    """
    stated = _stated(folder)
    layers, weights = _weights(folder)
    ranks = {tensor.shape[0] for name, tensor in weights.items() if name.endswith("lora_A.weight")}
    rank = stated.get("r")
    alpha = stated.get("lora_alpha")
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
        folder,
        backbone.config,
        tokenizer,
        weights,
        *backbone_metadata(backbone),
        settings,
        BaseModel(name, ""),
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
    layers = set()
    weights = {}
    for name, tensor in checkpoints.read_tensors(folder, WEIGHTS).items():
        if (parts := _NAME.fullmatch(name)) is None or tensor.dim() != 2:
            raise CheckpointError(
                f"holds {name}", file=folder / WEIGHTS, expected="lora_A and lora_B of linear layers"
            )
        layers.add(parts["layer"])
        weights[f"backbone.{parts['layer']}.{parts['kind']}.weight"] = tensor.float()
    return layers, weights


TOWERS = ("question_model", "ctx_model")
OVERRIDE = "encoder.pretrained_model_cfg=<local folder with config.json and the tokenizer's files>"


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
        projection_dim=len(stored.weights.get("question_model.encode_proj.weight", ())),
        sequence_length=stored.sequence_length,
        dpr_trailing_sep=trailing_sep,
    )
    weights = {}
    for name, tensor in stored.weights.items():
        tower, _, rest = name.partition(".")
        of_backbone = tower in TOWERS and not rest.startswith("encode_proj.")
        weights[f"{tower}.backbone.{rest}" if of_backbone else name] = tensor
    return ModelParts(settings, config, tensorizer, weights)


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


EXPECTED = (
    "a folder with model.safetensors and encoder_settings.json, a run folder, a Hugging Face folder with"
    " config.json and model.safetensors, a folder of sentence-transformers or peft, or a checkpoint file of"
    " the original DPR"
)


class OpenedModel(NamedTuple):
    """What ``BiEncoder`` is made with; ``parts`` with the stored weights that its towers do not have yet."""

    towers: tuple[Encoder, Encoder]
    parts: ModelParts
    options: TowerOptions
    source: Path


def open_model(
    path: Path,
    settings: EncoderSettings | None,
    options: TowerOptions,
    *,
    text: GivenTextSettings | None,
    dropout: float | None,
    base: str | None,
    special_tokens: Sequence[str],
    trailing_sep: bool,
) -> OpenedModel:
    """A stored model; the arguments are those of ``BiEncoder.load``, ``base`` its ``pretrained_model_cfg``.

    Raises:
        CheckpointError: there is none, or it is invalid.
        ConfigError: ``text`` is not what the model was trained with, or ``settings`` ask for adapters that it
        does not have.
    """
    if path.is_file():  # of the original DPR: models of this toolkit and of other libraries are folders
        source = path
        parts = read_model_parts(
            path, pretrained_model_cfg=base, special_tokens=special_tokens, trailing_sep=trailing_sep
        )
    else:
        source = checkpoints.resolve_checkpoint(path)
        checkpoints.warn_of_verdict(source)
        parts = _folder_parts(source, path, settings or EncoderSettings(), base)
    check_start(settings, parts.settings)
    parts = parts._replace(settings=parts.present(text, path))
    if options.temperature is None:
        stored = parts.temperature if options.learn_temperature else parts.stored_temperature
        options = replace(options, temperature=stored)
    else:
        parts.weights.pop("log_temperature", None)
    make: Callable[..., nn.Module] = partial(backbone_from_config, parts.config)
    if parts.base is not None:
        make = partial(load_base, parts.base, source, base)
    make = partial(make, dropout=dropout, attention_dropout=options.attention_dropout)
    try:
        towers = build_towers(make, parts.settings, options, parts.base or BaseModel(str(source), ""))
    except DprError:
        raise
    except Exception as error:  # model classes raise anything for an inconsistent config
        raise CheckpointError(
            f"its config makes no model ({type(error).__name__}: {str(error)[:200]})", file=source
        ) from error
    return OpenedModel(towers, parts, options, source)


def is_backbone(folder: Path) -> bool:
    """Whether a folder holds a Hugging Face encoder alone, which does not say how it is used."""
    is_stated = checkpoints.is_checkpoint(folder) or (folder / MODULES).is_file() or is_dpr(folder)
    return (folder / CONFIG).is_file() and not is_stated


def _folder_parts(folder: Path, given: Path, settings: EncoderSettings, base: str | None) -> ModelParts:
    """The model in a folder; ``settings`` state what a third-party folder does not, ``base`` the model that
    its adapters belong to."""
    try:
        if checkpoints.is_checkpoint(folder):
            return _checkpoint_parts(folder, settings.pooling)
        if (parts := _foreign_parts(folder, settings, base)) is not None:
            return parts
    except CheckpointError:
        raise
    except InputError as error:
        raise CheckpointError(
            error.found, file=error.file, line=error.line, expected=error.expected, hint=error.hint
        ) from error
    raise CheckpointError("is not a checkpoint", file=given, expected=EXPECTED)


def _checkpoint_parts(folder: Path, given_pooling: str) -> ModelParts:
    checkpoints.check_whole(folder)
    file = folder / checkpoints.SETTINGS_FILE
    stored = checkpoints.read_settings(folder)
    settings = _checked(stored, file)
    temperature = _temperature(stored.get("temperature"), file)
    if is_user_defined(settings.pooling) and settings.pooling != given_pooling:
        found = f"its pooling is the user-defined {settings.pooling}, and a file may not name code to run"
        raise CheckpointError(
            found, file=file, hint=f"if you trust that class, set encoder.pooling={settings.pooling}"
        )
    encoder = folder / checkpoints.ENCODER_FOLDER
    weights = checkpoints.read_tensors(folder, checkpoints.MODEL_FILE)
    config = read_config(encoder)
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    base = None if settings.adapter == "none" else _base(stored.get("base"), settings, shapes, file)
    if base is None:
        refuse_impossible_sizes(config, shapes, encoder / CONFIG)
    tensorizer = Tensorizer.load(
        encoder,
        sequence_length=settings.sequence_length,
        question_length=settings.question_length,
        append_eos=settings.append_eos,
    )
    learned = weights["log_temperature"].exp().tolist() if "log_temperature" in weights else None
    tensorizer.present(settings.part(TextSettings))
    learned_temperature = _temperature(learned, folder / checkpoints.MODEL_FILE)
    stated = frozenset(asdict(TextSettings()))
    return ModelParts(settings, config, tensorizer, weights, temperature, learned_temperature, base, stated)


def _base(
    stored: Any, settings: EncoderSettings, shapes: Mapping[str, tuple[int, ...]], file: Path
) -> BaseModel:
    """The model that adapters belong to, by name and fingerprint; they may not be larger than the weights
    beside it."""
    if not isinstance(stored, dict) or not all(
        isinstance(stored.get(key), str) and stored[key] for key in BaseModel._fields
    ):
        raise CheckpointError(
            f"base is {describe(stored)}",
            file=file,
            expected="name and fingerprint of the model its adapters belong to",
        )
    if settings.lora_rank not in {shape[0] for shape in shapes.values() if shape}:
        raise CheckpointError(f"lora_rank is {settings.lora_rank}", file=file, expected="that of the weights")
    return BaseModel(stored["name"], stored["fingerprint"])


def _temperature(value: Any, file: Path) -> float | None:
    if value is not None and not (type(value) in (int, float) and 0 < value <= sys.float_info.max):
        raise CheckpointError(
            f"temperature is {describe(value)}", file=file, expected="a finite number above 0"
        )
    return None if value is None else float(value)


def _checked(stored: Mapping[str, Any], file: Path) -> EncoderSettings:
    """The stored settings, checked; unknown ones, of newer versions, are left out."""
    if stored.get("pool_prompts") is False:
        raise CheckpointError(
            "its vectors leave the tokens of prompts out, which this version does not", file=file
        )
    known = {key: value for key, value in stored.items() if key in EncoderSettings.__dataclass_fields__}
    settings = replace(EncoderSettings(), **known)
    try:
        settings.check_values("")
    except ConfigError as error:
        raise CheckpointError(str(error), file=file) from None
    if settings.projection_activation not in ("none", "tanh"):
        found = f"projection_activation is {settings.projection_activation[:40]}"
        raise CheckpointError(found, file=file, expected="none or tanh")
    for key, value in known.items():
        if isinstance(value, int) and value > _LARGEST:  # such a projection would take all memory
            raise CheckpointError(f"{key} is {value}", file=file, expected=f"at most {_LARGEST}")
    return settings


def _foreign_parts(folder: Path, settings: EncoderSettings, base: str | None) -> ModelParts | None:
    """A folder that another library wrote; None if it is none of those that are known. ``base`` names the
    model that adapters belong to."""
    if (folder / MODULES).is_file():
        return _sentence_transformers_parts(folder, settings, base)
    if is_dpr_pair(folder):
        question, ctx = dpr_towers(folder)
        lengths = (tokenizer_length(question.source), tokenizer_length(ctx.source))
        return joined(
            question, ctx, replace(settings, pooling="cls", normalize=False), lengths=lengths, own_text=True
        )
    if is_adapter(folder):
        tower = adapter_tower(folder, base)
        return joined(tower, tower, settings)
    if is_dpr(folder):
        raise CheckpointError(
            "is the folder of one encoder of a Hugging Face DPR pair", file=folder, expected=DPR_PAIR
        )
    if not (folder / CONFIG).is_file():
        return None
    tower = backbone_tower(folder)
    return joined(tower, tower, settings)


def _sentence_transformers_parts(folder: Path, settings: EncoderSettings, base: str | None) -> ModelParts:
    """One tower, or two of a Router, as the modules of the folder say, each with the length of its side."""
    sides = read_modules(folder)
    settings, stated = described_settings(folder, sides, settings)
    read = {modules: _module_tower(modules, base) for modules in dict.fromkeys(sides)}
    for tower, _ in read.values():
        if marks_segments(tower, "1"):
            expected = "token type 0; the toolkit has no other"
            raise CheckpointError(
                "its tokenizer gives the tokens of a text other types", file=tower.source, expected=expected
            )
        if "title_template" not in stated and not settings.title_template and marks_segments(tower, "1", "2"):
            # As everyone does who encodes titles with the library; a pair would have token types.
            settings = replace(settings, title_template=SPACED_TITLE)
    (question, question_length), (ctx, ctx_length) = (read[modules] for modules in sides)
    question_length = question_length or stated_length(sides[0].body, SIDES[0]) or question.longest
    ctx_length = ctx_length or stated_length(sides[1].body, SIDES[1]) or ctx.longest
    width = question.settings.get("projection_dim", question.config.hidden_size)
    if settings.dimensions >= width:  # where there is nothing to cut
        settings = replace(settings, dimensions=0)
    lengths = (question_length, ctx_length)
    return joined(question, ctx, settings, lengths=lengths, stated=stated, own_text=True)


def _module_tower(modules: Modules, base: str | None) -> tuple[ForeignTower, int | None]:
    """The tower that the modules of a side are, and its length where it is not that of a tokenizer."""
    length = None
    if modules.kind == STATIC:
        tower, length = static_tower(modules.body)
    elif is_adapter(modules.body):
        tower = adapter_tower(modules.body, base)
    else:
        tower = backbone_tower(modules.body)
    return projected(tower, modules.dense), length
