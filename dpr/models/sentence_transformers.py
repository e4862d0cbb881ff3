"""sentence-transformers folders, read and written: the modules that the texts of each side pass, and what the
settings beside them say of vectors and texts. Those with weights are in ``dpr.models.sentence_modules``.

Each is applied or refused: a folder whose vectors would be others than the library's is not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dpr.core.errors import CheckpointError, ConfigError
from dpr.core.logs import get_logger
from dpr.data.settings import TextSettings
from dpr.data.tokenizer_files import check_files
from dpr.formats.checkpoints import write_json_file
from dpr.models.pretrained import CONFIG
from dpr.models.settings import POOLINGS, EncoderSettings, pooling_kinds
from dpr.storage.durable import read_json
from dpr.storage.inside import inside
from dpr.storage.strict_json import describe

logger = get_logger(__name__)

MODULES = "modules.json"
SIDES = ("query", "document")
OF_PASSAGES = ("passage", "corpus")
"""Prompts that the library documents for passages, but never comes to."""
TRANSFORMER, STATIC, POOLING, DENSE, NORMALIZE, ROUTER = (
    "Transformer",
    "StaticEmbedding",
    "Pooling",
    "Dense",
    "Normalize",
    "Router",
)
_OWN = "dpr"
"""Under this key the library's file states what it has no place for: the title template, and that questions'
apostrophes become plain."""
_PACKAGE = "sentence_transformers."
_LIBRARY = "config_sentence_transformers.json"
_ROUTER = "router_config.json"
_LONGEST_CONTEXT = 1 << 17
# The keys of earlier versions, each with a boolean, in place of ``pooling_mode``; several are joined in this
# order.
_OLD_KEY = "pooling_mode_"
_OLD_POOLINGS = (
    "cls_token",
    "max_tokens",
    "mean_tokens",
    "mean_sqrt_len_tokens",
    "weightedmean_tokens",
    "lasttoken",
)


def _mode(key: str) -> str:
    """The ``pooling_mode`` that a key of earlier versions stands for."""
    return re.sub(f"^{_OLD_KEY}|_tokens?$", "", key)


_POOLINGS = {
    _mode(kind.sentence_transformers): name for name, kind in POOLINGS.items() if kind.sentence_transformers
}
# Of prompts that do not count, other poolings read the place of a token, which the library moves.
_WITHOUT_PROMPT = {"mean", "max", "mean_sqrt"}
_CHAIN = f"{TRANSFORMER}|({TRANSFORMER} {POOLING}|{STATIC})( {DENSE})*( {NORMALIZE})?"
_EXPECTED = (
    f"{TRANSFORMER} and {POOLING} ({', '.join(_POOLINGS)}) or {STATIC}, then perhaps {DENSE}, and"
    f" {NORMALIZE}; or a {ROUTER} with a {SIDES[0]} and a {SIDES[1]} route of these"
)
# The file with the settings of a Transformer; earlier versions named it after the family.
_BODY_FILE = "sentence_bert_config.json"
_BODY = re.compile(r"sentence_(bert|roberta|distilbert|camembert|albert|xlm-roberta|xlnet)_config\.json")
# What a Transformer's settings say of how it is loaded, not of what it computes.
_LOADING = {
    "trust_remote_code",
    "dtype",
    "torch_dtype",
    "attn_implementation",
    "device_map",
    "low_cpu_mem_usage",
    "add_pooling_layer",
}
_USUAL_BODY: dict[str, Any] = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
}
_STATES = {"method": "forward", "method_output_name": "last_hidden_state"}


class Tower(NamedTuple):
    """The modules that the texts of one side pass, by their folders; ``kind`` is that of ``body``. None:
    there is no such module."""

    kind: str
    body: Path
    pooling: Path | None
    dense: tuple[Path, ...]
    normalize: bool


def read_towers(folder: Path) -> tuple[Tower, Tower]:
    """The modules of questions and those of passages; equal where both sides pass the same ones.

    Raises:
        CheckpointError: they are others than these, in another order, or a Router chooses by anything but the
        side.
    """
    check_files(folder)
    file = folder / MODULES
    modules = read_json(file)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError("is not a list of modules", file=file)
    chain = [(str(module.get("type")), _inside(folder, module.get("path"), file)) for module in modules]
    if not chain or _kind(chain[0][0]) not in (ROUTER, "Asym"):
        return (tower := _tower(chain, file)), tower
    routes = _routes(chain[0][1])
    question, ctx = (_tower([*route, *chain[1:]], file) for route in routes)
    if question.kind != ctx.kind:
        found = f"this Router passes questions through a {question.kind} and passages through a {ctx.kind}"
        raise CheckpointError(found, file=chain[0][1] / _ROUTER, expected="two towers of one kind")
    return question, ctx


def has_table(towers: tuple[Tower, Tower]) -> bool:
    """Whether questions pass a table of token vectors, as the toolkit writes it (a GPT without layers), and
    passages pass layers."""
    kinds = [_read_object(tower.body / CONFIG) if tower.kind == TRANSFORMER else {} for tower in towers]
    is_table = [kind.get("model_type") == "openai-gpt" and kind.get("n_layer") == 0 for kind in kinds]
    return is_table == [True, False] and towers[1].kind == TRANSFORMER


def _routes(folder: Path) -> tuple[list[tuple[str, Path]], ...]:
    """The types and folders of the modules of queries, and those of documents."""
    file = next((folder / name for name in (_ROUTER, CONFIG) if (folder / name).is_file()), folder / _ROUTER)
    stated = _read_object(file)
    types, structure, parameters = (stated.get(name) or {} for name in ("types", "structure", "parameters"))
    if not all(isinstance(part, dict) for part in (types, structure, parameters)):
        raise CheckpointError("types, structure and parameters are not objects", file=file)
    if parameters.get("route_mappings"):
        raise CheckpointError(
            "routes are chosen by route_mappings",
            file=file,
            expected="a route named query and one named document",
        )
    found = [structure.get(side) for side in SIDES]
    if not all(isinstance(route, list) and route for route in found):
        expected = "modules for query and document"
        raise CheckpointError(
            f"the routes are {', '.join(map(str, structure))[:100] or 'none'}", file=file, expected=expected
        )
    places = [
        [(name, _inside(folder, name, file)) for name in route] for route in found if isinstance(route, list)
    ]
    return tuple([(str(types.get(name)), place) for name, place in route] for route in places)


def _tower(chain: list[tuple[str, Path]], file: Path) -> Tower:
    kinds = [_kind(name) for name, _ in chain]
    if not re.fullmatch(_CHAIN, " ".join(kinds)):
        found = ", ".join(kind or name for kind, (name, _) in zip(kinds, chain, strict=True))[:200]
        raise CheckpointError(f"the modules are {found or 'none'}", file=file, expected=_EXPECTED)
    places = [place for _, place in chain]
    dense = tuple(place for kind, place in zip(kinds, places, strict=True) if kind == DENSE)
    return Tower(kinds[0], places[0], places[1] if POOLING in kinds else None, dense, NORMALIZE in kinds)


def _kind(name: str) -> str:
    """The library's name of a type; empty for a class of anyone else, whose code is not run."""
    return name.rpartition(".")[2] if name.startswith(_PACKAGE) else ""


def described_settings(
    folder: Path, towers: tuple[Tower, Tower], settings: EncoderSettings
) -> tuple[EncoderSettings, frozenset[str]]:
    """The settings with what the folder states of vectors and texts, and which text settings it states.

    Raises:
        CheckpointError: it states what the toolkit's towers cannot do.
    """
    question, ctx = towers
    library, file = _read_object(folder / _LIBRARY), folder / _LIBRARY
    has_cosine = _similarity(library, file) == "cosine"
    normalize = settings.normalize or question.normalize or has_cosine
    poolings = [_pooling(tower, settings.pooling, scaled=normalize and not tower.dense) for tower in towers]
    if has_table(towers) and poolings[0] == "mean":
        poolings[0] = poolings[1]
    pools_prompts = [_pools_prompts(tower, pooling) for tower, pooling in zip(towers, poolings, strict=True)]
    if (poolings[0], pools_prompts[0]) != (
        poolings[1],
        pools_prompts[1],
    ) or question.normalize != ctx.normalize:
        found = "pools or normalises questions and passages differently"
        raise CheckpointError(
            found, file=folder, expected="the same on both sides; the toolkit's towers share these settings"
        )
    text: dict[str, Any] = _prompts(library, file) | own_text(folder)
    try:
        TextSettings(**text).check()
    except ConfigError as error:
        raise CheckpointError(str(error), file=file) from None
    for tower in dict.fromkeys(towers):
        if tower.kind == TRANSFORMER:
            _check_body(tower.body)
    if not pools_prompts[0] and text.pop("prompts", None):
        logger.warning(
            "%s: its named prompts are not read, since their tokens do not count in the vector; give one as"
            " query_prompt",
            file,
        )
    width = library.get("truncate_dim") or 0
    if type(width) is not int or width < 0 or (width and question.normalize and not has_cosine):
        expected = (
            "none, or a cosine as similarity: the library cuts scaled vectors, the toolkit scales cut ones"
        )
        raise CheckpointError(f"truncate_dim is {describe(width)}", file=file, expected=expected)
    if has_cosine and (width or not question.normalize):
        logger.info(
            "%s: vectors are scaled to length 1, as its similarity (cosine) does; the library returns them"
            " unscaled",
            folder,
        )
    vectors: dict[str, Any] = {
        "pooling": poolings[0],
        "normalize": normalize,
        "dimensions": width or settings.dimensions,
    }
    vectors["pool_prompts"] = pools_prompts[0]
    return replace(settings, **vectors, **text), frozenset(text)


def _pools_prompts(tower: Tower, pooling: str) -> bool:
    """Whether tokens of prompts count in the vector. CheckpointError where they do not, and the pooling reads
    a token by its place."""
    if (
        tower.pooling is None
        or pooling == "last"
        or _read_object(tower.pooling / CONFIG).get("include_prompt") is not False
    ):
        return True
    if others := set(pooling.split("+")) - _WITHOUT_PROMPT:
        found = (
            "this Pooling leaves the tokens of prompts out of the vector (include_prompt is false) by"
            f" {min(others)}"
        )
        raise CheckpointError(
            found,
            file=tower.pooling / CONFIG,
            expected=f"include_prompt: true, or {', '.join(sorted(_WITHOUT_PROMPT))}",
        )
    return False


def own_text(folder: Path) -> dict[str, Any]:
    """The title template, where the toolkit wrote the folder."""
    own = _read_object(folder / _LIBRARY).get(_OWN)
    return (
        {"title_template": own["title_template"]} if isinstance(own, dict) and "title_template" in own else {}
    )


def stated_length(body: Path, side: str) -> int | None:
    """The longest text of ``side`` (query or document) in tokens, where the folder of a Transformer states
    it.

    The library's own file takes precedence over the tokenizer's.
    """
    own = body_settings(body)
    return _length(own.get(f"{side}_length")) or _length(own.get("max_seq_length")) or tokenizer_length(body)


def tokenizer_length(folder: Path) -> int | None:
    """The longest text of a tokenizer in tokens, where its file states one."""
    return _length(_read_object(folder / "tokenizer_config.json").get("model_max_length"))


def _length(value: Any) -> int | None:
    """A length, unless it is none, or the number by which a tokenizer says that it has none."""
    return value if type(value) is int and 3 <= value <= _LONGEST_CONTEXT else None


def body_settings(body: Path) -> dict[str, Any]:
    """The library's settings of a Transformer; empty where there are none."""
    files = sorted(path for path in body.glob("sentence_*_config.json") if _BODY.fullmatch(path.name))
    return next((found for file in files if (found := _read_object(file))), {})


def _check_body(body: Path) -> None:
    """CheckpointError for settings of a Transformer by which texts or states would be others than the
    tokenizer's and the encoder's."""
    stated = body_settings(body)
    modalities = stated.get("modality_config") or {"text": _STATES}
    odd = [
        name
        for name in ("processing_kwargs", "query_expansion", "tokenizer_name_or_path", "do_lower_case")
        if stated.get(name)
    ]
    odd += [name for name, usual in _USUAL_BODY.items() if stated.get(name, usual) != usual]
    for name in [
        f"{of}_{what}" for of in ("model", "tokenizer", "processor", "config") for what in ("args", "kwargs")
    ]:
        given = stated.get(name) or {}
        odd += [name] if not isinstance(given, dict) or given.keys() - _LOADING else []
    found = [f"{name} is {describe(stated[name])}" for name in odd]
    if not isinstance(modalities, dict) or modalities.get("text") != _STATES:
        found.append("modality_config does not name the last hidden states of a text")
    elif "message" in modalities:
        found.append("texts go through a chat template (message in modality_config)")
    if found:
        expected = "a plain Transformer: the tokenizer's ids, the encoder's last hidden states"
        raise CheckpointError(", and ".join(found), file=body, expected=expected)


def _similarity(library: dict[str, Any], file: Path) -> str | None:
    """``similarity_fn_name``: dot, cosine or nothing; others are refused."""
    name = library.get("similarity_fn_name")
    if name not in (None, "dot", "dot_product", "cosine"):
        raise CheckpointError(f"the similarity is {describe(name)}", file=file, expected="dot or cosine")
    return name


def _prompts(library: dict[str, Any], file: Path) -> dict[str, Any]:
    """``query_prompt``, ``passage_prompt`` and ``prompts``, as far as the folder states them.

    They are what ``encode_query`` and ``encode_document`` apply: the prompts named query and document, be
    they empty, and never the default. Earlier versions had only ``encode``, with the default or a prompt that
    the caller named: where that would be another one, it is said, and settings may state it.
    """
    stated = library.get("prompts") or {}
    if not isinstance(stated, dict) or not all(
        value is None or isinstance(value, str) for value in stated.values()
    ):
        raise CheckpointError(f"prompts is {describe(stated)}", file=file, expected="texts by name")
    texts = {name: value or "" for name, value in stated.items()}
    default = library.get("default_prompt_name") or None
    if default is not None and (not isinstance(default, str) or default not in {*SIDES, *texts}):
        raise CheckpointError(
            f"default_prompt_name is {describe(default)}",
            file=file,
            expected="the name of one of its prompts",
        )
    prompts = {"query_prompt": texts.get(SIDES[0], ""), "passage_prompt": texts.get(SIDES[1], "")}
    named = {name: text for name, text in sorted(texts.items()) if name not in SIDES and text}
    if not any(prompts.values()) and not named:
        return {}
    for (setting, text), function, others in zip(
        list(prompts.items()), ("encode_query", "encode_document"), ((), OF_PASSAGES), strict=True
    ):
        other = next((name for name in (*others, default) if texts.get(name or "")), None)
        if not text and other is not None:
            del prompts[setting]
            message = (
                "%s: no prompt is used where %s of sentence-transformers uses none; to apply its prompt %r,"
                " set encoder.%s=%r"
            )
            logger.warning(message, file.parent, function, other, setting, texts[other])
    return prompts | {"prompts": named}


def _inside(folder: Path, path: Any, file: Path) -> Path:
    if path in ("", "."):
        return folder
    place = inside(folder, path, stated_in=file.name)
    check_files(place)
    return place


def _read_object(file: Path) -> dict[str, Any]:
    found = read_json(file) if os.path.lexists(file) else {}  # what is there must be a file
    if not isinstance(found, dict):
        raise CheckpointError(f"is {describe(found)}", file=file, expected="an object")
    return found


def _pooling(tower: Tower, given: str, *, scaled: bool) -> str:
    """``pooling_mode``: cls, or in earlier versions ``pooling_mode_cls_token``: true. ``given`` where there
    is no such module.

    A mean divided by the root of the length in place of the length is the same one once vectors are
    ``scaled`` to length 1.
    """
    if tower.pooling is None:
        return "mean" if tower.kind == STATIC else given
    file = tower.pooling / CONFIG
    stated = _read_object(file)
    if not stated:
        raise CheckpointError(
            "is missing or empty", file=file, expected="the settings of a Pooling, as the library saves them"
        )
    mode = stated.get("pooling_mode")
    chosen = mode if isinstance(mode, list) and mode else [mode]
    if mode is None:
        chosen = [key for key in (_OLD_KEY + name for name in _OLD_POOLINGS) if stated.get(key) is True] or [
            "mean"
        ]
    names = [_mode(str(each)) for each in chosen]
    if unknown := [name for name in names if name not in _POOLINGS]:
        raise CheckpointError(
            f"this Pooling is by {unknown[0][:100]}",
            file=file,
            expected=f"one of {', '.join(_POOLINGS)}, or several",
        )
    return "mean" if scaled and names == ["mean_sqrt_len"] else "+".join(_POOLINGS[name] for name in names)


def type_of(kind: str) -> str:
    """What the library imports for a module of a kind; all versions know the name, later ones have others
    besides."""
    return f"{_PACKAGE}models.{kind}"


def write_modules(folder: Path, routes: Sequence[Mapping[str, str]]) -> None:
    """Writes which modules texts pass: of each side, or of both, their types by the names of their folders,
    in order."""
    modules = routes[0]
    if len(routes) > 1:
        modules = {"": type_of(ROUTER)}
        structure = {side: list(route) for side, route in zip(SIDES, routes, strict=True)}
        parameters = {"default_route": SIDES[1], "allow_empty_key": True}
        types = {name: kind for route in routes for name, kind in route.items()}
        write_json_file(folder, _ROUTER, {"types": types, "structure": structure, "parameters": parameters})
    listed = [
        {"idx": row, "name": str(row), "path": path, "type": kind}
        for row, (path, kind) in enumerate(modules.items())
    ]
    write_json_file(folder, MODULES, listed)


def write_library_settings(
    folder: Path, settings: EncoderSettings, *, similarity: str, width: int | None, others: dict[str, Any]
) -> None:
    """Writes what ``described_settings`` reads; ``width``: the dimensions to which the library cuts vectors,
    None where it does not."""
    stated: dict[str, Any] = {
        "prompts": {SIDES[0]: settings.query_prompt, SIDES[1]: settings.passage_prompt, **settings.prompts},
        "default_prompt_name": None,
        "similarity_fn_name": similarity,
        _OWN: {
            "title_template": settings.title_template,
            "plain_apostrophes": settings.plain_apostrophes and not settings.shared,
        },
    }
    write_json_file(folder, _LIBRARY, stated | ({} if width is None else {"truncate_dim": width}) | others)


def write_body_settings(folder: Path, longest: int, of_sides: Sequence[int] = ()) -> None:
    """Writes the longest text of a Transformer in tokens, or that of each side."""
    lengths = {f"{side}_length": length for side, length in zip(SIDES, of_sides, strict=False)}
    write_json_file(folder, _BODY_FILE, {"max_seq_length": longest, "do_lower_case": False, **lengths})


def pooling_settings(pooling: str, width: int, *, include_prompt: bool) -> dict[str, Any]:
    """Of a Pooling over states of ``width``, with the keys of the library's newest versions and, of one
    pooling alone, of those before, which other programs read: of several they would take one."""
    modes = [str(kind.sentence_transformers) for kind in pooling_kinds(pooling)]
    old = {f"{_OLD_KEY}{name}": _mode(name) == _mode(modes[0]) for name in _OLD_POOLINGS if len(modes) == 1}
    stated = {"pooling_mode": modes[0] if len(modes) == 1 else modes, **old, "include_prompt": include_prompt}
    return {"embedding_dimension": width, **stated}
