"""Reader of what a sentence-transformers folder states: the modules that the texts of each side pass, and the
settings of vectors and texts. ``sentence_transformers`` reads the weights.

Each setting is applied or refused: a folder whose vectors would differ from the library's is not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dpr.core.errors import CheckpointError, ConfigError
from dpr.core.logs import get_logger
from dpr.core.machine import reading
from dpr.data.settings import TextSettings
from dpr.formats.model_folder import CONFIG, ModelFolder, look
from dpr.models.settings import POOLINGS, EncoderSettings
from dpr.models.sources import local_model
from dpr.storage.untrusted import describe, inside

logger = get_logger(__name__)

MODULES = "modules.json"
SIDES = ("query", "document")
OF_PASSAGES = ("passage", "corpus")
"""Prompts that the library documents for passages, but never applies."""
TRANSFORMER = "Transformer"
STATIC = "StaticEmbedding"
POOLING = "Pooling"
DENSE = "Dense"
NORMALIZE = "Normalize"
ROUTER = "Router"
OWN = "dpr"
"""Key of the library's file for settings that have no place in it: the title template."""
PACKAGE = "sentence_transformers."
LIBRARY = "config_sentence_transformers.json"
ROUTER_FILE = "router_config.json"
_LONGEST_CONTEXT = 1 << 17
# The keys of earlier versions, each with a boolean, in place of ``pooling_mode``.
OLD_KEY = "pooling_mode_"
OLD_POOLINGS = (
    "cls_token",
    "max_tokens",
    "mean_tokens",
    "mean_sqrt_len_tokens",
    "weightedmean_tokens",
    "lasttoken",
)


def mode_of(key: str) -> str:
    """Returns the ``pooling_mode`` that a key of earlier versions stands for."""
    return re.sub(f"^{OLD_KEY}|_tokens?$", "", key)


_POOLINGS = {mode_of(mode): name for name, mode in POOLINGS.items() if mode}
_CHAIN = f"{TRANSFORMER}|({TRANSFORMER} {POOLING}|{STATIC})( {DENSE})*( {NORMALIZE})?"
_EXPECTED = (
    f"{TRANSFORMER} and {POOLING} ({', '.join(_POOLINGS)}) or {STATIC}, then perhaps {DENSE}, and"
    f" {NORMALIZE}; or a {ROUTER} with a {SIDES[0]} and a {SIDES[1]} route of these"
)
# Settings of a Transformer that say how it is loaded, not what it computes.
_LOADING = {
    "trust_remote_code",
    "dtype",
    "torch_dtype",
    "attn_implementation",
    "device_map",
    "low_cpu_mem_usage",
    "add_pooling_layer",
}
_ARGUMENTS = re.compile("(model|tokenizer|processor|config)_(args|kwargs)")
# Settings that would change the tokenizer's texts or the encoder's states, with their values in a plain
# Transformer.
_PLAIN_BODY: dict[str, Any] = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "processing_kwargs": None,
    "query_expansion": None,
    "tokenizer_name_or_path": None,
}


class Modules(NamedTuple):
    """Modules that texts pass, by their folders. ``kind`` is that of ``body``. None stands for an absent module."""

    kind: str
    body: ModelFolder
    pooling: ModelFolder | None
    dense: tuple[ModelFolder, ...]
    normalize: bool


def read_modules(folder: ModelFolder) -> tuple[Modules, Modules]:
    """Returns the modules of questions and those of passages, equal if both sides pass the same ones.

    Raises:
        CheckpointError: the folder has other modules, another order, or a Router that chooses by anything but
        the side.
    """
    looked = cache(look)  # both routes may name a folder

    def place(within: ModelFolder, path: Any, file: Path) -> ModelFolder:
        return within if path in ("", ".") else looked(inside(within.path, path, stated_in=file.name))

    file = folder.path / MODULES
    listed = folder.value(MODULES)
    if not isinstance(listed, list) or not all(isinstance(module, dict) for module in listed):
        raise CheckpointError("is not a list of modules", file=file)
    chain = [(place(folder, module.get("path"), file), str(module.get("type"))) for module in listed]
    if chain and _kind(chain[0][1]) == ROUTER:
        router = chain[0][0]
        stated = router.settings(ROUTER_FILE)
        stating = router.path / ROUTER_FILE
        parts = [stated.get(name) for name in ("types", "structure", "parameters")]
        types, structure, parameters = (part if isinstance(part, dict) else {} for part in parts)
        routes: list[Any] = [structure.get(side) for side in SIDES]
        if parameters.get("route_mappings") or not all(isinstance(route, list) for route in routes):
            raise CheckpointError(
                f"the routes are {', '.join(structure)[:100] or 'none'}",
                file=stating,
                expected="modules for query and document, and no route_mappings",
            )
        chains = [
            [(place(router, name, stating), str(types.get(name))) for name in route] + chain[1:]
            for route in routes
        ]
    else:
        chains = [chain, chain]
    return _modules(chains[0], file), _modules(chains[1], file)


def _modules(chain: list[tuple[ModelFolder, str]], file: Path) -> Modules:
    kinds = [_kind(name) for _, name in chain]
    if not re.fullmatch(_CHAIN, " ".join(kinds)):
        found = ", ".join(kind or name for kind, (_, name) in zip(kinds, chain, strict=True))[:200]
        raise CheckpointError(f"the modules are {found or 'none'}", file=file, expected=_EXPECTED)
    places = [place for place, _ in chain]
    dense = tuple(place for kind, place in zip(kinds, places, strict=True) if kind == DENSE)
    return Modules(kinds[0], places[0], places[1] if POOLING in kinds else None, dense, NORMALIZE in kinds)


def _kind(name: str) -> str:
    """Returns the library's name of a type; empty for anyone else's class, whose code is not run."""
    return name.rpartition(".")[2] if name.startswith(PACKAGE) else ""


def described_settings(
    folder: ModelFolder, sides: tuple[Modules, Modules], settings: EncoderSettings
) -> tuple[EncoderSettings, frozenset[str]]:
    """Returns the settings, completed by those of the folder, and the names of the text settings it states.

    Raises:
        CheckpointError: it states something that the toolkit's towers cannot do.
    """
    file = folder.path / LIBRARY
    library = folder.settings(LIBRARY)
    similarity = library.get("similarity_fn_name")
    if similarity not in (None, "dot", "dot_product", "cosine"):
        raise CheckpointError(
            f"the similarity is {describe(similarity)}", file=file, expected="dot or cosine"
        )
    has_cosine = similarity == "cosine"
    modules, of_ctx = sides
    pooling = _pooling(modules, settings.pooling)
    if pooling != _pooling(of_ctx, settings.pooling) or modules.normalize != of_ctx.normalize:
        raise CheckpointError(
            "pools or normalises questions and passages differently",
            file=folder.path,
            expected="the same on both sides; the toolkit's towers share these settings",
        )
    text: dict[str, Any] = prompts_of(library, file) | own_text(folder)
    try:
        TextSettings(**text).check()
    except ConfigError as error:
        raise CheckpointError(str(error), file=file) from None
    for body in [each.body for each in sides if each.kind == TRANSFORMER]:
        # Settings that would change the tokenizer's texts or the encoder's states.
        for name, given in body_settings(body).items():
            is_loading = isinstance(given, dict) and not given.keys() - _LOADING
            is_odd = bool(_ARGUMENTS.fullmatch(name)) and not is_loading
            if given and (is_odd or given != _PLAIN_BODY.get(name, given)):
                raise CheckpointError(
                    f"{name} is {describe(given)}",
                    file=body.path,
                    expected="a plain Transformer: the tokenizer's ids, the encoder's last hidden states of a text",
                )
    width = library.get("truncate_dim") or 0
    if type(width) is not int or width < 0 or (width and modules.normalize and not has_cosine):
        raise CheckpointError(
            f"truncate_dim is {describe(width)}",
            file=file,
            expected="none, or a cosine as similarity: the library cuts scaled vectors, the toolkit scales cut ones",
        )
    if has_cosine and (width or not modules.normalize):
        logger.info(
            "%s: vectors are scaled to length 1, as its similarity (cosine) does; the library returns them"
            " unscaled",
            folder,
        )
    settings = replace(
        settings,
        pooling=pooling,
        normalize=settings.normalize or modules.normalize or has_cosine,
        dimensions=width or settings.dimensions,
        **text,
    )
    return settings, frozenset(text)


def sentence_transformers_folder(name: str) -> Path | None:
    """Returns the sentence-transformers folder of a name, here or on the hub; None for any other model."""
    from huggingface_hub import hf_hub_download

    folder = Path(name)
    if not folder.exists():
        with suppress(Exception), reading(name):  # errors of the client if there is no such model or file
            hf_hub_download(name, MODULES)
            folder = local_model(name)
    return folder if (folder / MODULES).is_file() else None


def own_text(folder: ModelFolder) -> dict[str, Any]:
    """Returns the title template of a folder that the toolkit wrote."""
    own = folder.settings(LIBRARY).get(OWN)
    return (
        {"title_template": own["title_template"]} if isinstance(own, dict) and "title_template" in own else {}
    )


def stated_length(body: ModelFolder, side: str, limit: int = 0) -> int | None:
    """Returns the longest text of ``side`` (query or document) in tokens, if the folder of a Transformer
    states it.

    The library's own file takes precedence over the tokenizer's. The latter's length is cut at ``limit``, the
    number of positions of the encoder.
    """
    own = body_settings(body)
    tokenizer = body.settings("tokenizer_config.json")
    by_tokenizer = (tokenizer.get("model_max_length"), limit)
    for values in ((own.get(f"{side}_length"),), (own.get("max_seq_length"),), by_tokenizer):
        # A tokenizer without a limit states a huge number.
        found = [value for value in values if type(value) is int and 3 <= value <= _LONGEST_CONTEXT]
        if found:
            return min(found)
    return None


def body_settings(body: ModelFolder) -> dict[str, Any]:
    """Returns the library's settings of a Transformer; empty if there are none. Earlier versions named the
    file after the family: sentence_roberta_config.json."""
    names = sorted(file.name for file in body.path.glob("sentence_*_config.json"))
    return next(filter(None, map(body.settings, names)), {})


def prompts_of(library: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Returns ``query_prompt``, ``passage_prompt`` and ``prompts``, as far as the folder states them.

    ``encode_query`` and ``encode_document`` apply the prompts named query and document, never the default.
    All other prompts serve questions, by name.
    """
    stated = library.get("prompts") or {}
    if not isinstance(stated, dict) or not all(
        value is None or isinstance(value, str) for value in stated.values()
    ):
        raise CheckpointError(f"prompts is {describe(stated)}", file=file, expected="texts by name")
    texts = {name: text for name, text in sorted(stated.items()) if text}
    if not texts:
        return {}
    prompts: dict[str, Any] = {"prompts": {name: text for name, text in texts.items() if name not in SIDES}}
    for setting, side, others in (
        ("query_prompt", SIDES[0], ()),
        ("passage_prompt", SIDES[1], OF_PASSAGES),
    ):
        other = next(
            (name for name in (*others, str(library.get("default_prompt_name"))) if name in texts), None
        )
        if side in texts or other is None:
            prompts[setting] = texts.get(side, "")
        else:
            message = (
                "%s: no prompt is used where encode_%s of sentence-transformers uses none; to apply its prompt"
                " %r, set encoder.%s=%r"
            )
            logger.warning(message, file.parent, side, other, setting, texts[other])
    return prompts


def _pooling(modules: Modules, given: str) -> str:
    """Returns the pooling of ``pooling_mode``: cls, or in earlier versions ``pooling_mode_cls_token``: true.
    Returns ``given`` if there is no such module."""
    if modules.pooling is None:
        return "mean" if modules.kind == STATIC else given
    file = modules.pooling.path / CONFIG
    stated = modules.pooling.settings(CONFIG)
    if not stated:
        raise CheckpointError(
            "is missing or empty", file=file, expected="the settings of a Pooling, as the library saves them"
        )
    modes = stated.get("pooling_mode")
    if modes is None:
        modes = [name for name in OLD_POOLINGS if stated.get(OLD_KEY + name) is True] or ["mean"]
    names = [mode_of(str(mode)) for mode in (modes if isinstance(modes, list) else [modes])]
    if len(names) != 1 or names[0] not in _POOLINGS:
        raise CheckpointError(
            f"this Pooling is by {' and '.join(names)[:100]}",
            file=file,
            expected=f"one of {', '.join(_POOLINGS)}",
        )
    pooling = _POOLINGS[names[0]]
    if stated.get("include_prompt") is False and pooling != "last":
        raise CheckpointError(
            "this Pooling leaves the tokens of prompts out of the vector (include_prompt is false)",
            file=file,
            expected="include_prompt: true",
        )
    return pooling
