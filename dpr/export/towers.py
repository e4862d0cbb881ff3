"""A tower as the files of a Hugging Face model: config, weights and tokenizer, as plain transformers loads them;
adapters as part of the weights; and the properties of models that a format cannot express."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpr.core.errors import InputError
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import TYPOGRAPHIC_APOSTROPHE
from dpr.formats import checkpoints
from dpr.models.backbones import quiet_loading
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from dpr.models.folders.dpr import CTX, QUESTION
from dpr.models.pooling import IdfPooling, RootIdfPooling, is_user_defined
from dpr.models.properties import is_static

_SPECIAL = ("eos_token", "bos_token", "unk_token", "cls_token", "sep_token", "mask_token")


def refuse(
    problems: dict[str, bool],
    source: str,
    *,
    expected: str | None = None,
    hint: str = "to=onnx supports more, and to=model writes it for this toolkit",
) -> None:
    """Raises InputError with the reasons that apply."""
    if reasons := [reason for reason, holds in problems.items() if holds]:
        raise InputError(
            f"cannot be expressed in this format: {', and '.join(reasons)}",
            file=source,
            expected=expected,
            hint=hint,
        )


def only_here(model: BiEncoder) -> dict[str, bool]:
    """Returns properties of vectors that no other library supports, and whether the model has them."""
    settings = model.settings
    return {
        f"its pooling is the user-defined {settings.pooling}": is_user_defined(settings.pooling),
        "it reads the original's [SEP] at the end of the window": settings.dpr_trailing_sep,
    }


def weights_tokens(model: BiEncoder) -> bool:
    """True if weights of tokens, or their counts in a text, affect vectors in a way that the rows of a table
    cannot express."""
    pooling = model.ctx_model.pooling
    return isinstance(pooling, RootIdfPooling) or (
        isinstance(pooling, IdfPooling) and not is_static(model.ctx_model.backbone)
    )


class Side(NamedTuple):
    """A tower in its written form: its folder, and the rules of its tokenizer."""

    folder: str
    """Name of the folder; empty for the exported folder itself."""
    tower: Encoder
    longest: int
    """Length in tokens at which texts are cut."""
    plain_apostrophes: bool


def sides(model: BiEncoder, *, apart: bool = False) -> list[Side]:
    """Returns the towers; a shared one once, unless each side needs its own folder (``apart``)."""
    settings = model.settings
    if settings.shared and not apart:
        return [Side("", model.question_model, settings.sequence_length, plain_apostrophes=False)]
    question = Side(
        QUESTION, model.question_model, model.tensorizer.question_length, settings.plain_apostrophes
    )
    return [question, Side(CTX, model.ctx_model, settings.sequence_length, plain_apostrophes=False)]


def write_tower(
    model: BiEncoder, side: Side, target: Path, backbone: Any = None, **tokenizer_config: Any
) -> Any:
    """Writes config, weights and tokenizer of a side. Returns the backbone that was written, by default the
    side's in the form of transformers. A pooler, which some families have and no vector needs, is written as
    zeros; without one, transformers would make a random one and warn of it."""
    from transformers import AutoModel

    backbone = backbone or standard_backbone(side.tower, max(side.longest, model.settings.sequence_length))
    weights = {name: tensor.detach().cpu() for name, tensor in backbone.state_dict().items()}
    with suppress(
        ValueError, RuntimeError
    ):  # no Auto class has this family, or it cannot be made without memory
        with torch.device("meta"):
            whole = AutoModel.from_config(backbone.config)
        for name, tensor in whole.state_dict().items() if type(whole) is type(backbone) else ():
            if name not in weights and "pooler" in name:
                weights[name] = torch.zeros(tensor.shape)
    folder = target / side.folder
    folder.mkdir(parents=True, exist_ok=True)
    with quiet_loading():
        backbone.save_pretrained(str(folder), state_dict=weights)
    write_tokenizer(model.tensorizer, side, target, **tokenizer_config)
    return backbone


def standard_backbone(tower: Encoder, longest: int) -> Any:
    """Returns the backbone as a family of transformers.

    A static encoder becomes a GPT without layers. Its positions, ``longest`` of them, are zeros, so its
    states are the rows of its table. The weights of ``idf`` pooling become part of the rows.
    """
    from transformers import OpenAIGPTConfig, OpenAIGPTModel

    if not is_static(tower.backbone):
        return tower.backbone
    rows = static_rows(tower)
    config = OpenAIGPTConfig(
        vocab_size=len(rows),
        n_embd=rows.shape[1],
        n_positions=longest,
        n_layer=0,
        n_head=1,
        pad_token_id=tower.config.pad_token_id,
    )
    backbone = OpenAIGPTModel(config)
    backbone.load_state_dict(
        {"tokens_embed.weight": rows, "positions_embed.weight": torch.zeros(longest, rows.shape[1])}
    )
    return backbone.eval()


def static_rows(tower: Encoder) -> Tensor:
    """Returns the table (V, D) of a static encoder. The mean of its rows over the tokens of a text is the
    text's vector before the projection."""
    rows: Tensor = tower.backbone.get_input_embeddings().weight.detach().cpu().float()
    if isinstance(tower.pooling, IdfPooling):
        rows = rows * tower.pooling.token_weights.detach().cpu()[:, None]
    return rows


def write_tokenizer(
    tensorizer: Tensorizer, side: Side, target: Path, *, truncated: bool = False, **config: Any
) -> None:
    """Writes tokenizer.json and tokenizer_config.json of a side; ``config`` adds to the latter.

    The tokenizer class is the general one, which takes tokenizer.json as it is; the class of a family
    rebuilds parts of it. Token types are left out. ``truncated`` also writes the length into tokenizer.json,
    for libraries that read nothing else.
    """
    tokenizer = tensorizer.tokenizer
    folder = target / side.folder
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["padding"] = None
    state["truncation"] = None
    if side.plain_apostrophes:
        plain = {"type": "Replace", "pattern": {"String": TYPOGRAPHIC_APOSTROPHE}, "content": "'"}
        own = [state["normalizer"]] if state.get("normalizer") else []
        state["normalizer"] = {"type": "Sequence", "normalizers": [plain, *own]}
    if truncated:
        state["truncation"] = {
            "direction": tokenizer.truncation_side.capitalize(),
            "max_length": side.longest,
            "strategy": "LongestFirst",
            "stride": 0,
        }
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints.write_json_file(folder, "tokenizer.json", state)
    special = {name: str(token) for name in _SPECIAL if (token := getattr(tokenizer, name)) is not None}
    filler = tokenizer.pad_token or next(iter(special.values()), None)
    if filler is None:
        raise InputError(
            "its tokenizer has no special token to fill batches up with",
            expected="a pad_token",
            file=folder.name,
        )
    stated = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": side.longest,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "truncation_side": tokenizer.truncation_side,
        "clean_up_tokenization_spaces": False,
        "pad_token": str(filler),
    }
    checkpoints.write_json_file(folder, "tokenizer_config.json", stated | special | config)


def merged(model: BiEncoder) -> BiEncoder:
    """Returns the model with each tower's adapter added to the weights of a backbone of its own; a model
    without adapters is returned as it is.

    Weights are added in fp32 or more, and stay so: in bf16 the sum would lose much of an adapter.
    """
    if model.base is None:
        return model
    towers = []
    for tower in model.towers:
        whole = copy.deepcopy(tower)
        whole.to(torch.promote_types(next(tower.parameters()).dtype, torch.float32))
        adapter = whole.adapter
        whole.adapter = None
        assert adapter is not None
        with torch.no_grad():
            for name, layer in adapter.layers.items():
                layer.merge(safe_merge=True, adapter_names=[adapter.name])
                whole.backbone.set_submodule(name, layer.get_base_layer())
        whole.requires_grad_(True)
        towers.append(whole)
    settings = replace(model.settings, adapter="none")
    merged_model = BiEncoder(towers[0], towers[-1], model.tensorizer, settings, model.options)
    merged_model.log_temperature = copy.deepcopy(model.log_temperature)
    return merged_model.train(model.training)
