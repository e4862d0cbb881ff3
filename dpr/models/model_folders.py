"""Which file or folder is what, and a bi-encoder made of it: checkpoints of the toolkit and of the original
DPR, folders of Hugging Face and sentence-transformers, adapters of peft.

What a folder states wins over settings. Code in a folder is never run, and pickled weights are not read.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from dpr.core.errors import CheckpointError, ConfigError, InputError
from dpr.data.settings import TextSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import SPACED_TITLE
from dpr.data.tokenizer_files import check_files, load_tokenizer
from dpr.formats import checkpoints
from dpr.formats.original.checkpoints import read_dpr_checkpoint
from dpr.models.adapters import BaseModel
from dpr.models.backbones import (
    CONFIG,
    base_model,
    load_backbone,
    read_config,
    read_object,
    refuse_impossible_sizes,
    require_plain,
)
from dpr.models.encoder import ModelParts
from dpr.models.foreign_towers import (
    CTX,
    DPR_PAIR,
    QUESTION,
    ForeignTower,
    backbone_metadata,
    backbone_tower,
    dpr_tower,
    is_dpr,
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
from dpr.models.settings import EncoderSettings
from dpr.storage.untrusted import describe

WEIGHTS = "adapter_model.safetensors"
NAME = "base_model.model.{layer}.{kind}.weight"
"""Of a matrix, ``kind`` lora_A or lora_B."""
_CONFIG = "adapter_config.json"
_NAME = re.compile(NAME.replace(".", r"\.").format(layer="(?P<layer>.+)", kind="(?P<kind>lora_[AB])"))
# By any other an adapter would be more than two matrices beside every layer of a kind.
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
    file = folder / _CONFIG
    stated = read_object(file)
    require_plain(
        stated, _PLAIN, file, "plain LoRA; merge_and_unload of peft makes a whole model of any other"
    )
    if not (folder / WEIGHTS).is_file():
        raise InputError(f"has no {WEIGHTS}; pickles are not read", file=folder)
    layers = set()
    weights = {}
    ranks = set()
    for name, tensor in checkpoints.read_tensors(folder, WEIGHTS).items():
        parts = _NAME.fullmatch(name)
        if parts is None or tensor.dim() != 2:
            raise CheckpointError(
                f"holds {name}", file=folder / WEIGHTS, expected="lora_A and lora_B of linear layers"
            )
        layers.add(parts["layer"].rpartition(".")[2])
        weights[f"backbone.{parts['layer']}.{parts['kind']}.weight"] = tensor.float()
        if parts["kind"] == "lora_A":
            ranks.add(tensor.shape[0])
    rank = stated.get("r")
    alpha = stated.get("lora_alpha")
    if type(rank) is not int or ranks != {rank} or not _is_finite(alpha):
        found = f"r is {describe(rank)} and lora_alpha {describe(alpha)}"
        raise CheckpointError(found, file=file, expected=f"numbers; the weights have rank {sorted(ranks)}")
    stored = stated.get("base_model_name_or_path")
    if not given and (not isinstance(stored, str) or not stored):
        raise CheckpointError(
            "names no base model",
            file=file,
            hint="set encoder.pretrained_model_cfg=<folder of that model>",
        )
    with base_model(given, str(stored), folder) as name:
        backbone: Any = load_backbone(name)
        has_tokenizer = any((folder / file).is_file() for file in _TOKENIZER_FILES)
        tokenizer = load_tokenizer(folder if has_tokenizer else name)
    settings = {
        "adapter": "lora",
        "lora_rank": rank,
        "lora_alpha": float(alpha) * (math.sqrt(rank) if stated.get("use_rslora") else 1.0),
        "lora_targets": ",".join(sorted(layers)),
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
    if not pretrained_model_cfg and not stored.pretrained_model_cfg:
        raise CheckpointError("names no encoder", file=path, hint=f"set {OVERRIDE}")
    with base_model(pretrained_model_cfg, stored.pretrained_model_cfg or "", path) as name:
        config = read_config(name)
        tensorizer = Tensorizer.load(
            name,
            sequence_length=stored.sequence_length,
            do_lower_case=stored.do_lower_case,
            special_tokens=special_tokens,
        )
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


def is_backbone(folder: Path) -> bool:
    """Whether a folder holds a Hugging Face encoder alone, which does not say how it is used."""
    is_stated = checkpoints.is_checkpoint(folder) or (folder / MODULES).is_file() or is_dpr(folder)
    return (folder / CONFIG).is_file() and not is_stated


def read_model(
    path: Path,
    settings: EncoderSettings,
    *,
    base: str | None = None,
    special_tokens: Sequence[str] = (),
    trailing_sep: bool = True,
) -> tuple[ModelParts, Path]:
    """The model in a file or folder, and the folder that it was found in. ``settings`` state what a
    third-party folder does not, ``base`` names the model that its adapters, or a file of the original, belong
    to.

    Raises:
        CheckpointError: there is none, or it is invalid.
    """
    if path.is_file():  # of the original DPR: models of this toolkit and of other libraries are folders
        parts = read_model_parts(
            path, pretrained_model_cfg=base, special_tokens=special_tokens, trailing_sep=trailing_sep
        )
        return parts, path
    if not path.exists():
        raise CheckpointError("there is no such file or folder", file=path)
    folder = checkpoints.resolve_checkpoint(path)
    checkpoints.warn_of_verdict(folder)
    try:
        if checkpoints.is_checkpoint(folder):
            return _checkpoint_parts(folder, settings.pooling), folder
        if (folder / MODULES).is_file():
            return _sentence_transformers_parts(folder, settings, base), folder
        if is_dpr(folder / QUESTION) and is_dpr(folder / CTX):
            question = dpr_tower(folder / QUESTION)
            ctx = dpr_tower(folder / CTX)
            lengths = (tokenizer_length(question.source), tokenizer_length(ctx.source))
            settings = replace(settings, pooling="cls", normalize=False)
            return joined(question, ctx, settings, lengths=lengths, own_text=True), folder
        if is_adapter(folder):
            tower = adapter_tower(folder, base)
        elif is_dpr(folder):
            raise CheckpointError(
                "is the folder of one encoder of a Hugging Face DPR pair", file=folder, expected=DPR_PAIR
            )
        elif (folder / CONFIG).is_file():
            tower = backbone_tower(folder)
        else:
            raise CheckpointError("is not a checkpoint", file=path, expected=EXPECTED)
        return joined(tower, tower, settings), folder
    except CheckpointError:
        raise
    except InputError as error:
        raise CheckpointError(
            error.found, file=error.file, line=error.line, expected=error.expected, hint=error.hint
        ) from error


def _checkpoint_parts(folder: Path, given_pooling: str) -> ModelParts:
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
    base = None
    if settings.adapter == "none":
        refuse_impossible_sizes(config, shapes, encoder / CONFIG)
    else:
        named = stored.get("base")
        texts: list[Any] = [named.get(key) for key in BaseModel._fields] if isinstance(named, dict) else []
        if not texts or not all(isinstance(text, str) and text for text in texts):
            expected = "name and fingerprint of the model its adapters belong to"
            raise CheckpointError(f"base is {describe(named)}", file=file, expected=expected)
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
    learned = weights["log_temperature"].exp().tolist() if "log_temperature" in weights else None
    tensorizer.present(settings.part(TextSettings))
    learned_temperature = _temperature(learned, folder / checkpoints.MODEL_FILE)
    stated = frozenset(asdict(TextSettings()))
    return ModelParts(settings, config, tensorizer, weights, temperature, learned_temperature, base, stated)


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _temperature(value: Any, file: Path) -> float | None:
    if value is not None and not (_is_finite(value) and value > 0):
        raise CheckpointError(
            f"temperature is {describe(value)}", file=file, expected="a finite number above 0"
        )
    return None if value is None else float(value)


def _sentence_transformers_parts(folder: Path, settings: EncoderSettings, base: str | None) -> ModelParts:
    """One tower, or two of a Router, as the modules of the folder say, each with the length of its side."""
    sides = read_modules(folder)
    settings, stated = described_settings(folder, sides, settings)
    read: dict[Modules, tuple[ForeignTower, int | None]] = {}
    for modules in dict.fromkeys(sides):
        length = None
        if modules.kind == STATIC:
            tower, length = static_tower(modules.body)
        elif is_adapter(modules.body):
            tower = adapter_tower(modules.body, base)
        else:
            tower = backbone_tower(modules.body)
        read[modules] = projected(tower, modules.dense), length
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
