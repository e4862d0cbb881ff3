"""Readers of models: checkpoints of the toolkit and of the original DPR, folders of Hugging Face and
sentence-transformers, adapters of peft. Each returns the parts of a bi-encoder.

A folder of another library gives one tower or two. It may hold a plain encoder, the DPR classes of
transformers (two BERTs read at their first token), or the modules of sentence-transformers. Of these modules
two have weights: the table of a ``StaticEmbedding`` and the linear layers after the pooling (``Dense``).

Statements of a folder take precedence over settings. Code in a folder is never run, and pickled weights are
not read.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpr.core.errors import CheckpointError, ConfigError, InputError, first_line
from dpr.core.logs import get_logger, warn_once
from dpr.core.machine import panics_caught
from dpr.data.settings import TextSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import SPACED_TITLE, TYPOGRAPHIC_APOSTROPHE
from dpr.data.tokenizer_files import (
    append_end_token,
    check_files,
    check_tokenizer_files,
    load_tokenizer,
    steps_of,
)
from dpr.formats import checkpoints, run_folders
from dpr.formats.original.checkpoints import read_dpr_checkpoint
from dpr.models.adapters import BaseModel
from dpr.models.backbones import (
    CONFIG,
    base_model,
    check_safetensors,
    distinct_weights,
    load_backbone,
    load_weights,
    read_config,
    read_object,
    refuse_impossible_sizes,
    require_plain,
)
from dpr.models.encoder import ModelParts, present
from dpr.models.pooling import is_user_defined
from dpr.models.sentence_transformers import (
    MODULES,
    SIDES,
    STATIC,
    Modules,
    described_settings,
    read_modules,
    stated_length,
)
from dpr.models.settings import EncoderSettings
from dpr.models.static import StaticConfig
from dpr.models.trials import longest_sequence
from dpr.storage.durable import read_json
from dpr.storage.untrusted import describe

logger = get_logger(__name__)

QUESTION = "question_encoder"
CTX = "ctx_encoder"
DPR_PAIR = (
    f"a folder that holds both: the folder of the question encoder as {QUESTION}, that of the context encoder"
    f" as {CTX}"
)
LONGEST = 1 << 17
"""Longest text in tokens where nothing limits it: the library reads such texts to the end."""
# Keys of a config that two towers may state differently, since they change no vector.
_NO_MATTER = re.compile(
    r"_?name_or_path|architectures|(torch_)?dtype|transformers_version|tokenizer_class|use_cache|.*drop.*|.*_token_id|problem_type"
    r"|(id2label|label2id)|projection_dim"
)


class ForeignTower(NamedTuple):
    """One tower as it was read.

    ``weights`` go by their names within a tower; names of adapter weights end in ``lora_A.weight`` or
    ``lora_B.weight``.
    """

    source: Path
    config: Any
    tokenizer: Any
    weights: dict[str, Tensor]
    longest: int = LONGEST
    """Most tokens of a text that its backbone reads."""
    has_token_types: bool = False
    """True if its backbone takes token types. The library passes them to it; the toolkit leaves them out."""
    settings: Mapping[str, Any] = {}
    """Settings that follow from its weights: ``projection_dim`` and, of an adapter, rank, scale and layers."""
    base: BaseModel | None = None
    """Model that its adapter belongs to."""


def backbone_tower(folder: Path) -> ForeignTower:
    """Reads a Hugging Face folder with a whole encoder and its tokenizer.

    Raises:
        InputError: it cannot be loaded.
        CheckpointError: the model does not give a state for every token.
    """
    check_safetensors(folder)
    backbone: Any = load_backbone(str(folder))
    if (
        backbone.config.is_encoder_decoder and hasattr(backbone, "decoder")
    ) or backbone.config.model_type == "dpr":
        raise CheckpointError(
            f"is a {type(backbone).__name__}",
            file=folder,
            expected="one encoder that gives a vector for every token, such as a BERT",
        )
    weights = {f"backbone.{name}": tensor for name, tensor in distinct_weights(backbone).items()}
    return ForeignTower(
        folder, backbone.config, load_tokenizer(folder), weights, *backbone_metadata(backbone)
    )


def backbone_metadata(backbone: Any) -> tuple[int, bool]:
    """Returns the longest text of a backbone in tokens, and whether it takes token types."""
    return longest_sequence(backbone, LONGEST), "token_type_ids" in inspect.signature(
        backbone.forward
    ).parameters


def is_dpr(folder: Path) -> bool:
    """True if a folder holds one encoder of a Hugging Face DPR pair."""
    return (folder / CONFIG).is_file() and read_object(folder / CONFIG).get("model_type") == "dpr"


def dpr_tower(folder: Path) -> ForeignTower:
    """Reads the question or the context tower, depending on the name of the folder.

    Raises:
        InputError: a file is absent or damaged.
        CheckpointError: the folder holds the other encoder, or none.
    """
    from transformers import BertConfig, DPRContextEncoder, DPRQuestionEncoder

    check_files(folder, within=folder.parent)
    check_safetensors(folder)
    model_class = DPRQuestionEncoder if folder.name == QUESTION else DPRContextEncoder
    encoder = getattr(load_weights(model_class, folder, read_config(folder)), folder.name)
    weights = {f"backbone.{key}": tensor for key, tensor in distinct_weights(encoder.bert_model).items()}
    if encoder.projection_dim:
        weights |= {f"encode_proj.{key}": value for key, value in encoder.encode_proj.state_dict().items()}
    values = encoder.config.to_dict()
    for key in ("model_type", "architectures", "projection_dim"):
        values.pop(key, None)
    config = BertConfig.from_dict(values)
    # Use BERT's tokenizer in place of DPR's classes: some of these lower-case every text, whatever their file
    # says.
    kind = read_object(folder / "tokenizer_config.json").get("tokenizer_class", "DPR")
    options = {"tokenizer_type": "bert"} if str(kind).startswith("DPR") else {}
    return ForeignTower(
        folder,
        config,
        load_tokenizer(folder, **options),
        weights,
        config.max_position_embeddings,
        settings={"projection_dim": encoder.projection_dim},
    )


def marks_segments(tower: ForeignTower, *texts: str) -> bool:
    """True if a token type other than 0 reaches the backbone for one text, or a pair."""
    names = getattr(tower.tokenizer, "model_input_names", ())
    return (
        tower.has_token_types
        and "token_type_ids" in names
        and any(tower.tokenizer(*texts, verbose=False).encodings[0].type_ids)
    )


def joined(
    question: ForeignTower,
    ctx: ForeignTower,
    settings: EncoderSettings,
    *,
    lengths: Sequence[int | None] = (None, None),
    stated: frozenset[str] = frozenset(),
    own_text: bool = False,
) -> ModelParts:
    """Joins two towers, or one given twice, into the parts of a bi-encoder.

    Args:
        lengths: those of questions and passages, where they are stated. None takes the length from
            ``settings``.
        own_text: True if questions keep their typographic apostrophes, as in the library, unless its
            tokenizer of questions makes them plain. With one tower for both sides they always keep them.

    Raises:
        CheckpointError: the towers differ in more than weights.
        ConfigError: the tokenizer or a length does not fit.
    """
    metadata = [
        {name: value for name, value in tower.config.to_dict().items() if not _NO_MATTER.fullmatch(name)}
        | {f"encoder.{name}": value for name, value in tower.settings.items()}
        for tower in (question, ctx)
    ]
    # a difference in family explains all others
    for name in sorted({**metadata[0], **metadata[1]}, key=lambda name: (name != "model_type", name)):
        values = [each.get(name) for each in metadata]
        if values[0] != values[1]:
            raise CheckpointError(
                f"its two encoders differ in {name} ({str(values[0])[:60]} and {str(values[1])[:60]})",
                file=question.source.parent,
                expected="two encoders of one kind, which differ in weights only",
            )
    plain = _same_tokenizer(question, ctx)
    of_ctx = min(lengths[1] or settings.sequence_length, ctx.longest)
    of_question = lengths[0] or (settings.question_length if lengths[1] is None else 0) or of_ctx
    of_question = min(of_question, question.longest)
    for asked, tower in zip(lengths, (question, ctx), strict=True):
        if asked and asked > tower.longest:
            message = (
                "%s: texts are cut at %d tokens, not at %d as it states: the encoder has no more positions"
            )
            warn_once(logger, message, tower.source, tower.longest, asked)
    if settings.projection_dim not in (0, question.settings.get("projection_dim")):
        raise CheckpointError(
            f"encoder.projection_dim={settings.projection_dim}, but this folder has no such projection",
            file=question.source,
            hint="set it to 0; to train with one, start from encoder.pretrained_model_cfg=<the folder>",
        )
    of_weights: dict[str, Any] = {
        "projection_dim": 0,
        "projection_activation": "none",
        "adapter": "none",
        "static_questions": False,  # set after a model is loaded
        **question.settings,
    }
    settings = replace(
        settings,
        **of_weights,
        shared=question is ctx,
        sequence_length=of_ctx,
        question_length=0 if of_question == of_ctx else of_question,
    )
    if own_text or plain or question is ctx:
        settings = replace(settings, plain_apostrophes=plain)
    if settings.append_eos:
        append_end_token(ctx.tokenizer)
    tensorizer = Tensorizer(
        ctx.tokenizer, sequence_length=settings.sequence_length, question_length=settings.question_length
    )
    settings = present(tensorizer, settings)
    towers = {"question": question} if question is ctx else {"question": question, "ctx": ctx}
    weights = {}
    for side, tower in towers.items():
        for name, tensor in tower.weights.items():
            if tower.base is not None and name.startswith("backbone."):
                # both adapters belong to one backbone, which is named after the question tower
                weights[f"question_model.{name.removesuffix('weight')}{side}.weight"] = tensor
            else:
                weights[f"{side}_model.{name}"] = tensor
    return ModelParts(settings, question.config, tensorizer, weights, stated=stated, base=question.base)


def _same_tokenizer(question: ForeignTower, ctx: ForeignTower) -> bool:
    """True if the tokenizer of questions makes typographic apostrophes plain, and so differs from that of
    passages.

    Raises:
        CheckpointError: it differs in anything else.
    """
    if question is ctx:
        return False
    # State that determines the ids of a text, except for its length.
    states: list[dict[str, Any]] = []
    for tokenizer in (question.tokenizer, ctx.tokenizer):
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        lengths = {"truncation": None, "padding": None, "truncation_side": tokenizer.truncation_side}
        states.append(state | lengths | {"normalizer": steps_of(state.get("normalizer"))})
    first, second = states
    if first == second:
        return False
    steps = first["normalizer"]
    rule = steps[0] if steps else {}
    if rule.get("pattern") == {"String": TYPOGRAPHIC_APOSTROPHE} and rule.get("content") == "'":
        first["normalizer"] = steps[1:]
        if first == second:
            return True
    differing = next(name for name in second if first[name] != second[name])
    raise CheckpointError(
        f"the tokenizers of questions and passages differ ({differing})",
        file=question.source.parent,
        expected="one tokenizer; the toolkit's towers share it",
    )


_TOKENIZER = "tokenizer.json"
_EMPTY = "<|empty|>"
# Values with which a Dense is a linear layer of the pooled vector and nothing else.
_PLAIN_DENSE = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}
_TANH = "torch.nn.modules.activation.Tanh"
_ACTIVATIONS = {"torch.nn.modules.linear.Identity": "none", _TANH: "tanh"}
_TABLE = "embedding.weight"
_WEIGHT = "linear.weight"
_BIAS = "linear.bias"


def static_tower(folder: Path) -> tuple[ForeignTower, int]:
    """Reads a static encoder; returns its tower and the length at which texts are cut.

    The tokenizer adds no special tokens. A text without tokens gets a token of its own. The row of that token
    is zero, as the library's vector of such a text is.

    Raises:
        InputError: a file is absent, damaged, or of an unknown layout.
    """
    from transformers import PreTrainedTokenizerFast

    check_safetensors(folder)
    file = folder / _TOKENIZER
    if not file.is_file():
        raise InputError("there is no such file", file=file)
    check_tokenizer_files(folder)
    state = read_json(file)
    length = (state.get("truncation") or {}).get("max_length", LONGEST)
    length = min(length, LONGEST) if type(length) is int and length > 0 else LONGEST
    without = {"post_processor": None, "truncation": None, "padding": None}
    try:
        with panics_caught():
            given = PreTrainedTokenizerFast(tokenizer_file=str(file))
            backend: Any = type(given.backend_tokenizer)
            tokenizer: Any = PreTrainedTokenizerFast(
                tokenizer_object=backend.from_str(json.dumps(state | without)),
                pad_token=_EMPTY,
                truncation_side=given.truncation_side,
            )
    except Exception as error:  # the tokenizers package raises plain Exceptions over damaged files
        raise InputError(
            f"cannot be read ({first_line(error)})",
            file=file,
            expected="a tokenizer of the tokenizers library",
        ) from error
    # The rows by token id, under the library's name or model2vec's.
    stored = checkpoints.read_tensors(folder, checkpoints.MODEL_FILE)
    table = stored.get(_TABLE, stored.get("embeddings"))
    if table is None or len(stored) != 1 or table.dim() != 2 or not table.is_floating_point():
        raise CheckpointError(
            f"holds {', '.join(sorted(stored))[:100] or 'nothing'}",
            file=folder / checkpoints.MODEL_FILE,
            expected=f"a table of numbers alone, {_TABLE} or embeddings, with a row for each token",
        )
    table = table.float()
    empty = int(tokenizer.convert_tokens_to_ids(_EMPTY))
    largest = max(token for token in tokenizer.get_vocab().values() if token != empty)
    if largest >= len(table):
        raise CheckpointError(
            f"has {len(table)} rows",
            file=folder,
            expected=f"one for each of the tokenizer's {largest + 1} tokens",
        )
    table = torch.cat([table, table.new_zeros(max(empty + 1 - len(table), 0), table.shape[1])])
    table[empty] = 0
    config = StaticConfig(vocab_size=len(table), hidden_size=table.shape[1], pad_token_id=empty)
    return ForeignTower(folder, config, tokenizer, {"backbone.words.weight": table}), length


def write_table(folder: Path, rows: Tensor) -> None:
    """Writes the rows (V, D) of a ``StaticEmbedding``."""
    checkpoints.write_tensors(folder, checkpoints.MODEL_FILE, {_TABLE: rows})


def projected(tower: ForeignTower, folders: Sequence[Path]) -> ForeignTower:
    """Returns the tower with the layers in ``folders``, in order, as its projection. Consecutive linear
    layers become one; the last may have an activation.

    Raises:
        CheckpointError: a layer is not linear, or damaged.
    """
    if not folders:
        return tower
    weight, bias, activation = dense_layer(folders[0])
    for folder in folders[1:]:
        if activation != "none":
            raise CheckpointError(
                "another Dense comes after its activation",
                file=folder.parent,
                expected="Tanh in the last Dense alone",
            )
        second, added, activation = dense_layer(folder)
        if second.shape[1] != len(weight):
            raise CheckpointError(
                f"takes vectors of {second.shape[1]} numbers",
                file=folder,
                expected=f"the {len(weight)} it is given",
            )
        weight = second @ weight
        bias = second @ bias + added
    layer = {"encode_proj.weight": weight.float().contiguous(), "encode_proj.bias": bias.float()}
    return tower._replace(
        weights=tower.weights | layer,
        settings={**tower.settings, "projection_dim": len(weight), "projection_activation": activation},
    )


def dense_layer(folder: Path) -> tuple[Tensor, Tensor, str]:
    """Returns matrix and bias in fp64, and the activation that follows."""
    file = folder / CONFIG
    stated = read_object(file)
    if not stated:
        raise CheckpointError("is missing or empty", file=file, expected="the settings of a Dense")
    require_plain(stated, _PLAIN_DENSE, file, "a linear layer behind the pooling")
    function = stated.get("activation_function", _TANH)
    activation = _ACTIVATIONS.get(function) if isinstance(function, str) else None
    if activation is None:
        raise CheckpointError(
            f"activation_function of this Dense is {describe(function)}",
            file=file,
            expected="Identity or Tanh",
        )
    check_safetensors(folder)
    stored = checkpoints.read_tensors(folder, checkpoints.MODEL_FILE)
    weight = stored.get(_WEIGHT, torch.zeros(0)).double()
    bias = stored.get(_BIAS, weight.new_zeros(len(weight))).double()
    if not stored.keys() <= {_WEIGHT, _BIAS} or weight.dim() != 2 or bias.shape != weight.shape[:1]:
        raise CheckpointError(
            f"holds {', '.join(sorted(stored))[:100] or 'nothing'}",
            file=folder / checkpoints.MODEL_FILE,
            expected="the matrix and bias of one linear layer",
        )
    return weight, bias, activation


def write_dense(folder: Path, weight: Tensor, bias: Tensor | None, activation: str) -> None:
    """Writes a linear layer with the matrix (outputs, inputs) and ``encoder.projection_activation`` after it."""
    rows, columns = weight.shape
    function = next(function for function, name in _ACTIVATIONS.items() if name == activation)
    stated = {
        "in_features": columns,
        "out_features": rows,
        "bias": bias is not None,
        "activation_function": function,
    }
    write_module(folder, stated, {_WEIGHT: weight} | ({} if bias is None else {_BIAS: bias}))


def write_module(folder: Path, stated: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Writes the settings of a module and its weights, if it has any."""
    folder.mkdir(exist_ok=True)
    checkpoints.write_json_file(folder, CONFIG, stated)
    if weights:
        checkpoints.write_tensors(folder, checkpoints.MODEL_FILE, weights)


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
_LARGEST = 1 << 20
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer_config.json")


def is_adapter(folder: Path) -> bool:
    """True if a folder holds an adapter alone, without the model it belongs to."""
    check_files(folder)
    return (folder / _CONFIG).is_file() and not list(folder.glob("model*.safetensors"))


def adapter_tower(folder: Path, given: str | None = None) -> ForeignTower:
    """Reads the tower of an adapter. ``given`` names its base model in place of the name in its file.

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
    alpha: Any = stated.get("lora_alpha")
    if type(rank) is not int or ranks != {rank} or not _is_finite(alpha):
        raise CheckpointError(
            f"r is {describe(rank)} and lora_alpha {describe(alpha)}",
            file=file,
            expected=f"numbers; the weights have rank {sorted(ranks)}",
        )
    with base_model(given, stated.get("base_model_name_or_path"), file) as name:
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


def read_model_parts(
    path: Path,
    *,
    pretrained_model_cfg: str | None = None,
    special_tokens: Sequence[str] = (),
    trailing_sep: bool = True,
) -> ModelParts:
    """Reads a checkpoint file of the original DPR.

    The file has no backbone config and no tokenizer. Both come from ``pretrained_model_cfg`` or, without one,
    from the model that the file names. That name is only looked up on this machine, so that a file cannot
    cause a download.

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
    with base_model(pretrained_model_cfg, stored.pretrained_model_cfg, path) as name:
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
    """Renames weights for the original's loader, which requires both towers and their poolers. The poolers
    are zero; nothing uses them."""
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
    """True if a folder holds a Hugging Face encoder alone, which does not state how it is used."""
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
    """Reads the model in a file or folder; returns its parts and the folder in which it was found.

    ``settings`` supply what a third-party folder does not state. ``base`` names the model to which its
    adapters, or a file of the original, belong.

    Raises:
        CheckpointError: there is none, or it is invalid.
    """
    if path.is_file():  # of the original DPR: models of this toolkit and of other libraries are folders
        parts = read_model_parts(
            path, pretrained_model_cfg=base, special_tokens=special_tokens, trailing_sep=trailing_sep
        )
        return parts, path
    if not path.exists():
        # DPR numbered its checkpoints by epochs
        others = [other.name for other in path.parent.glob("*.step*")]
        raise CheckpointError(
            "there is no such file or folder", file=path, expected=" or ".join(sorted(others)[-3:]) or None
        )
    folder = run_folders.resolve_checkpoint(path)
    run_folders.warn_of_verdict(folder)
    try:
        if checkpoints.is_checkpoint(folder):
            return _checkpoint_parts(folder, settings.pooling), folder
        if (folder / MODULES).is_file():
            return _sentence_transformers_parts(folder, settings, base), folder
        if is_dpr(folder / QUESTION) and is_dpr(folder / CTX):
            question = dpr_tower(folder / QUESTION)
            ctx = dpr_tower(folder / CTX)
            lengths = (stated_length(question.source, SIDES[0]), stated_length(ctx.source, SIDES[1]))
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
    if is_user_defined(settings.pooling) and settings.pooling != given_pooling:
        raise CheckpointError(
            f"its pooling is the user-defined {settings.pooling}, and a file may not name code to run",
            file=file,
            hint=f"if you trust that class, set encoder.pooling={settings.pooling}",
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
    tensorizer.present(settings.part(TextSettings))
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


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _temperature(value: Any, file: Path) -> float | None:
    if value is not None and not (_is_finite(value) and value > 0):
        raise CheckpointError(
            f"temperature is {describe(value)}", file=file, expected="a finite number above 0"
        )
    return None if value is None else float(value)


def _sentence_transformers_parts(folder: Path, settings: EncoderSettings, base: str | None) -> ModelParts:
    """Reads one tower, or the two of a Router, from the modules of the folder. Each side has its own length."""
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
            raise CheckpointError(
                "its tokenizer gives the tokens of a text other types",
                file=tower.source,
                expected="token type 0; the toolkit has no other",
            )
        if "title_template" not in stated and not settings.title_template and marks_segments(tower, "1", "2"):
            # Users of the library encode titles this way; a pair would have token types.
            settings = replace(settings, title_template=SPACED_TITLE)
    lengths = []
    for side, modules in zip(SIDES, sides, strict=True):
        tower, length = read[modules]
        positions = getattr(tower.config, "max_position_embeddings", None) or 0
        lengths.append(length or stated_length(modules.body, side, min(positions, tower.longest)))
    (question, _), (ctx, _) = (read[modules] for modules in sides)
    width = question.settings.get("projection_dim", question.config.hidden_size)
    if settings.dimensions >= width:  # nothing to cut
        settings = replace(settings, dimensions=0)
    return joined(question, ctx, settings, lengths=lengths, stated=stated, own_text=True)
