"""sentence-transformers folders: where the encoder is, and what the modules and the settings beside them say of vectors and texts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpr.core.errors import CheckpointError
from dpr.formats.durable import read_json
from dpr.formats.json_records import describe
from dpr.models.pretrained import CONFIG
from dpr.models.settings import EncoderSettings

MODULES = "modules.json"
_LIBRARY = "config_sentence_transformers.json"
_LONGEST_CONTEXT = 1 << 17
_POOLINGS = {"cls": "cls", "mean": "mean", "weightedmean": "weighted_mean", "max": "max", "lasttoken": "last"}
_OF_PASSAGES = ("document", "passage", "corpus")  # the names of prompts, in the order in which the library looks for them


def sentence_transformers_settings(folder: Path, settings: EncoderSettings) -> tuple[Path, EncoderSettings, frozenset[str]]:
    """The folder of the encoder, the settings with what the folder states, and which text settings it states."""
    modules = read_json(folder / MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError("is not a list of modules", file=folder / MODULES)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer"], ["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        expected = f"Transformer, Pooling ({', '.join(_POOLINGS)}) and perhaps Normalize"
        raise CheckpointError(f"the modules are {', '.join(kinds)[:100] or 'none'}", file=folder / MODULES, expected=expected)
    places = [_inside(folder, module.get("path")) for module in modules]
    library = _read_object(folder / _LIBRARY)
    has_cosine = _similarity(library, folder / _LIBRARY) == "cosine"
    settings = replace(settings, normalize=settings.normalize or "Normalize" in kinds or has_cosine)
    if "Pooling" in kinds:
        settings = replace(settings, pooling=_pooling(places[1] / CONFIG))
    prompts = _prompts(library, folder / _LIBRARY)
    if prompts and "Pooling" in kinds and _read_object(places[1] / CONFIG).get("include_prompt") is False:
        found = "the tokens of prompts do not count in its pooling (include_prompt is false)"
        raise CheckpointError(found, file=places[1] / CONFIG, expected="include_prompt: true")
    return places[0], replace(settings, **_lengths([library, *_bodies(places[0])]), **prompts), frozenset(prompts)


def _bodies(body: Path) -> list[dict[str, Any]]:
    """The library stores lengths in the tokenizer's file; earlier versions had a separate file, which takes precedence."""
    return [_read_object(body / "tokenizer_config.json"), _read_object(body / "sentence_bert_config.json")]


def _lengths(files: list[dict[str, Any]]) -> dict[str, Any]:
    """``sequence_length`` and ``question_length``, as far as they are stated; later files take precedence."""
    found: dict[str, int] = {}
    for stated in files:
        both = stated.get("max_seq_length", stated.get("model_max_length"))
        values = {"sequence_length": stated.get("document_length") or both, "question_length": stated.get("query_length")}
        if stated.get("document_length") and not stated.get("query_length"):
            values["question_length"] = both or found.get("sequence_length")
        found |= {name: value for name, value in values.items() if type(value) is int and 3 <= value <= _LONGEST_CONTEXT}
    return found


def _similarity(library: dict[str, Any], file: Path) -> str | None:
    """``similarity_fn_name``: dot, cosine or nothing; others are refused."""
    name = library.get("similarity_fn_name")
    if name not in (None, "dot", "dot_product", "cosine"):
        raise CheckpointError(f"the similarity is {describe(name)}", file=file, expected="dot or cosine")
    return name


def _prompts(library: dict[str, Any], file: Path) -> dict[str, Any]:
    """``query_prompt``, ``passage_prompt`` and ``prompts``, where the folder states any. The library writes empty ones for both sides in
    any case; its default prompt is that of both where neither has one."""
    stated = library.get("prompts") or {}
    if not isinstance(stated, dict) or not all(value is None or isinstance(value, str) for value in stated.values()):
        raise CheckpointError(f"prompts is {describe(stated)}", file=file, expected="texts by name")
    texts = {name: value or "" for name, value in stated.items()}
    default = library.get("default_prompt_name") or None
    if default is not None and (not isinstance(default, str) or default not in texts):
        raise CheckpointError(f"default_prompt_name is {describe(default)}", file=file, expected="the name of one of its prompts")
    query, passage = texts.get("query", ""), next((texts[name] for name in _OF_PASSAGES if texts.get(name)), "")
    if default is not None and not query and not passage:
        query = passage = texts[default]
    others = {name: text for name, text in sorted(texts.items()) if name not in ("query", *_OF_PASSAGES) and text}
    found = {"query_prompt": query, "passage_prompt": passage, "prompts": others}
    return found if any(found.values()) else {}


def _inside(folder: Path, path: Any) -> Path:
    if not isinstance(path, str) or Path(path).name != path or path == "..":
        raise CheckpointError(f"the path {describe(path)} of a module", file=folder / MODULES, expected="the name of a folder beside it")
    return folder / path


def _read_object(file: Path) -> dict[str, Any]:
    found = read_json(file) if file.is_file() else {}
    if not isinstance(found, dict):
        raise CheckpointError(f"is {describe(found)}", file=file, expected="an object")
    return found


def _pooling(file: Path) -> str:
    """``pooling_mode``: cls, or in earlier versions ``pooling_mode_cls_token``: true."""
    stated = _read_object(file)
    mode = stated.get("pooling_mode")
    chosen = [mode] if isinstance(mode, str) else [key for key in stated if key.startswith("pooling_mode_") and stated[key] is True]
    kind = _POOLINGS.get(re.sub("^pooling_mode_|_tokens?$", "", chosen[0])) if len(chosen) == 1 else None
    if kind is None:
        found = f"pooling by {', '.join(chosen)[:100] or 'nothing'}"
        raise CheckpointError(found, file=file, expected="cls, mean, weighted mean, max or last token")
    return kind
