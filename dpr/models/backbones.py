"""Backbones: Hugging Face encoders without their poolers, from files or from a config, with a given
dropout."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpr.core.errors import CheckpointError, InputError
from dpr.models.pretrained import CONFIG, load_weights, read_config, without_running
from dpr.storage.durable import MANIFEST, read_manifest


def load_backbone(
    name_or_folder: str,
    *,
    pretrained: bool = True,
    dropout: float | None = None,
    attention_dropout: float | None = None,
) -> nn.Module:
    """Loads a Hugging Face encoder in fp32, or with random weights from its config, as a folder of ``dpr
    new-encoder`` has no others.

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
    from dpr.models.static import static_if_layerless

    backbone: nn.Module = load_weights(
        auto_class(config), name_or_folder, config, **_without_pooler(type(config))
    )
    _switch_off_dropout(backbone, dropout, attention_dropout)
    return static_if_layerless(backbone)


def is_without_weights(folder: Path) -> bool:
    """Whether a folder is one of ``dpr new-encoder``, whose weights come with training, or a static encoder's
    that was made by hand."""
    if not (folder / CONFIG).is_file() or any(
        file.suffix in (".safetensors", ".bin") for file in folder.iterdir()
    ):
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
    """Random weights. Each call copies the config, because models keep settings on it."""
    config = copy.deepcopy(config)
    set_dropout(config, dropout, attention_dropout)
    backbone = auto_class(config).from_config(
        config, dtype=torch.float32, trust_remote_code=False, **_without_pooler(type(config))
    )
    _switch_off_dropout(backbone, dropout, attention_dropout)
    return backbone


# Probabilities of heads, which no vector passes, and of skipping whole layers.
_NO_DROPOUT_OF_TOWERS = re.compile("classif|summary|pooler|qa_|layer_?drop|path|token")


def set_dropout(config: Any, dropout: float | None, attention_dropout: float | None = None) -> None:
    """Sets every dropout probability of a config, those of attention to ``attention_dropout`` if given."""
    of_attention = dropout if attention_dropout is None else attention_dropout
    for key, probability in (("encoder.dropout", dropout), ("encoder.attention_dropout", of_attention)):
        for name in _dropout_names(config)[key] if probability is not None else ():
            setattr(config, name, probability)


def dropout_of(config: Any) -> dict[str, float]:
    """The probabilities of a config by setting; the largest where a config has several."""
    return {
        key: max([getattr(config, name) or 0.0 for name in names], default=0.0)
        for key, names in _dropout_names(config).items()
    }


# Keys of a config that decide no vector: of heads, of how files are written, and of dropout, which has
# settings.
_UNDECIDING = re.compile(
    r"architectures|(torch_)?dtype|transformers_version|(id2)?label(2id)?|problem_type|use_cache|.*drop.*|_.*"
)


def deciding_config(config: Any) -> dict[str, Any]:
    """The keys of a config that decide a vector, with their values, where these are not the default of its
    family.

    A version of transformers that adds a key with a default changes nothing in it.
    """
    defaults: dict[str, Any] = {}
    with suppress(Exception):  # some families have no default
        defaults = type(config)().to_dict()
    values = without_running(
        {name: value for name, value in config.to_dict().items() if not _UNDECIDING.fullmatch(name)}
    )
    return {name: value for name, value in values.items() if value != defaults.get(name)}


def _dropout_names(config: Any) -> dict[str, list[str]]:
    """The names of a config's dropout probabilities by setting; families differ (``resid_pdrop``,
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
    """If all dropout is to be off, switches off modules that the config does not name."""
    for module in backbone.modules() if dropout == 0 and not attention_dropout else ():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0


def auto_class(config: Any) -> Any:
    """The Auto class whose models give a state for every token: for T5 and similar models, that of the
    encoder alone."""
    from transformers import (
        MODEL_FOR_TEXT_ENCODING_MAPPING,
        MODEL_MAPPING,
        AutoModel,
        AutoModelForTextEncoding,
    )

    encoder = MODEL_FOR_TEXT_ENCODING_MAPPING.get(type(config), None)
    return AutoModel if encoder in (None, MODEL_MAPPING.get(type(config), None)) else AutoModelForTextEncoding


def _without_pooler(config_class: type) -> dict[str, bool]:
    """The pooler is never used; leaving it out keeps data-parallel training free of unused parameters."""
    from transformers import AutoModel

    registered: Any = AutoModel._model_mapping.get(config_class, None)
    model_class = registered[0] if isinstance(registered, tuple) else registered
    has_pooler = model_class is not None and "add_pooling_layer" in inspect.signature(model_class).parameters
    return {"add_pooling_layer": False} if has_pooler else {}


def distinct_weights(module: nn.Module) -> dict[str, Tensor]:
    """The state of a module with each shared tensor once, under its first name."""
    names = {name for named in (module.named_parameters(), module.named_buffers()) for name, _ in named}
    return {name: tensor for name, tensor in module.state_dict().items() if name in names}


def check_vocabulary(tokenizer: Any, model: Any, file: str | Path | None) -> None:
    """Raises CheckpointError where a tokenizer has tokens that its model has no row for."""
    rows, largest = len(model.get_input_embeddings().weight), max(tokenizer.get_vocab().values())
    if largest >= rows:
        found = f"its tokenizer has tokens up to number {largest}, but the model has embeddings of {rows}"
        raise CheckpointError(
            found, file=file, hint="copy the tokenizer that belongs to the model into its folder"
        )


def check_weights(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: Path) -> None:
    """Raises CheckpointError unless the weights found in ``source`` have the names and shapes of the expected
    ones."""
    wrong = {
        "missing": sorted(expected.keys() - found.keys()),
        "not known": sorted(found.keys() - expected.keys()),
        "of another shape": [
            name for name in expected if name in found and expected[name].shape != found[name].shape
        ],
    }
    if problems := [f"{len(names)} {what}: {', '.join(names[:3])}" for what, names in wrong.items() if names]:
        hint = "was it written with other encoder.* settings?"
        raise CheckpointError(
            f"the weights do not fit this model ({'; '.join(problems)})", file=source, hint=hint
        )
