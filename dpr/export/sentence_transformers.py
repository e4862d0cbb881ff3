"""Export to sentence-transformers: a folder with one copy of the weights, which plain transformers loads too.

A shared tower has the library's plain layout. Two towers are one Router with a route for queries and one for
documents. A title is the first text of a pair, ``(title, text)``; if the model joins title and text by a
template, the joined text is encoded. Modules have the names that the library gives them (``1_Pooling``), by
which programs that serve such folders find them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.machine import no_downloads, require, version_of
from dpr.data.settings import TextSettings
from dpr.data.text import TYPOGRAPHIC_APOSTROPHE, presented
from dpr.export.folders import Format
from dpr.export.towers import (
    Side,
    only_here,
    refuse,
    sides,
    static_rows,
    weights_tokens,
    write_tokenizer,
    write_tower,
)
from dpr.formats.checkpoints import MODEL_FILE, write_json_file, write_tensors
from dpr.formats.model_folder import CONFIG, look
from dpr.models.biencoder import BiEncoder
from dpr.models.folders.sentence_transformers import ACTIVATIONS, BIAS, TABLE, WEIGHT
from dpr.models.folders.sentence_transformers_modules import (
    DENSE,
    LIBRARY,
    MODULES,
    NORMALIZE,
    OLD_KEY,
    OLD_POOLINGS,
    OWN,
    PACKAGE,
    POOLING,
    ROUTER,
    ROUTER_FILE,
    SIDES,
    STATIC,
    TRANSFORMER,
    mode_of,
    own_text,
)
from dpr.models.pooling import RootIdfPooling
from dpr.models.properties import is_static
from dpr.models.settings import POOLINGS
from dpr.storage.durable import durable_file

ROOT_MODULE = "root_static_embedding"
"""Module for ``idf_sqrt``: name of the file in the folder, which is a copy of the module here."""
_CODE = Path(__file__).with_name(f"{ROOT_MODULE}.py")
_BATCH = 8


def write(model: BiEncoder, folder: Path, *, source: str) -> None:
    """Writes the model into ``folder``.

    Raises:
        InputError: the library cannot express something that determines its vectors.
    """
    _refuse_one_sided_apostrophes(model, source)
    settings = model.settings
    weighted = weights_tokens(model) and not is_static(model.ctx_model.backbone)
    problems = only_here(model) | {
        "questions and passages, cut at different lengths, have one tokenizer": (
            _is_bag(model) and _has_two_lengths(model)
        ),
        f"its pooling ({settings.pooling}) weights the tokens of a transformer": weighted,
    }
    for name in SIDES:
        problems[f"it has a prompt called {name}, a name of the library's own"] = name in settings.prompts
    refuse(problems, source)
    routes = [_write_route(model, folder, side) for side in sides(model)]
    modules = routes[0]
    if len(routes) > 1:
        modules = {"": _type_of(ROUTER)}
        structure = {side: list(route) for side, route in zip(SIDES, routes, strict=True)}
        parameters = {"default_route": SIDES[1], "allow_empty_key": True}
        types = {name: kind for route in routes for name, kind in route.items()}
        write_json_file(
            folder, ROUTER_FILE, {"types": types, "structure": structure, "parameters": parameters}
        )
    listed = [
        {"idx": row, "name": str(row), "path": path, "type": kind}
        for row, (path, kind) in enumerate(modules.items())
    ]
    write_json_file(folder, MODULES, listed)
    if needs_own_code(model):
        with durable_file(folder / _CODE.name, "wb") as file:
            file.write(_CODE.read_bytes())
    versions = {
        "transformers": version_of("transformers"),
        "pytorch": version_of("torch"),
        "sentence_transformers": version_of("sentence-transformers") or "5.4.0",
    }
    others: dict[str, Any] = {"model_type": "SentenceTransformer", "__version__": versions}
    if _has_two_lengths(model):
        others["requirements"] = {
            "sentence-transformers": {
                "specifier": ">=6.0",
                "reason": "queries and documents have different lengths",
            }
        }
    stated: dict[str, Any] = {
        "prompts": {SIDES[0]: settings.query_prompt, SIDES[1]: settings.passage_prompt, **settings.prompts},
        "default_prompt_name": None,
        "similarity_fn_name": model.similarity_fn_name,
        OWN: {"title_template": settings.title_template},
        "truncate_dim": model.dimension if _truncates(model) else None,
    }
    write_json_file(folder, LIBRARY, stated | others)


def _refuse_one_sided_apostrophes(model: BiEncoder, source: str) -> None:
    """Raises InputError if one tokenizer would have to change questions alone."""
    if not model.settings.plain_apostrophes:
        return
    mark = TYPOGRAPHIC_APOSTROPHE
    if model.settings.shared:
        first, second = model.tensorizer.bare_tokens([f"don{mark}t {mark}", "don't '"])
        # if this vocabulary does not distinguish the two, nothing is changed
        problem = "questions and passages have one tokenizer, which makes typographic apostrophes plain in questions alone"
        hint = "encoder.plain_apostrophes=false encoder.allow_other_prompts=true writes it without that rule"
        refuse({problem: first != second}, source, hint=hint)
    else:
        prompts = [model.settings.query_prompt, *model.settings.prompts.values()]
        problem = "its prompts have typographic apostrophes, and those of questions become plain"
        refuse({problem: mark in "".join(prompts)}, source)


def needs_own_code(model: BiEncoder) -> bool:
    """True if the library has no module for it, so that the folder contains one."""
    return isinstance(model.ctx_model.pooling, RootIdfPooling)


def _has_two_lengths(model: BiEncoder) -> bool:
    return model.settings.shared and model.tensorizer.question_length != model.settings.sequence_length


def _truncates(model: BiEncoder) -> bool:
    """True if the library cuts vectors, which it does after all modules. Before scaling, and after a
    projection, a layer cuts them."""
    return (
        bool(model.settings.dimensions)
        and not model.settings.normalize
        and model.ctx_model.encode_proj is None
    )


def _standard_pooling(model: BiEncoder) -> str:
    """Returns the pooling over the states of ``standard_backbone``. If questions use a static embedding
    table, which has a mean, it is the pooling of passages."""
    return "mean" if model.settings.pooling == "idf" else model.settings.pooling


def _is_bag(model: BiEncoder) -> bool:
    """True if it can be a ``StaticEmbedding``, the mean over the words of one text without special tokens, or
    the toolkit's own kind of one."""
    adds_nothing = model.tensorizer.tokenizer.num_special_tokens_to_add(pair=False) == 0
    is_mean = adds_nothing and _standard_pooling(model) == "mean"
    return is_static(model.ctx_model.backbone) and (is_mean or needs_own_code(model))


def _write_route(model: BiEncoder, folder: Path, side: Side) -> dict[str, str]:
    """Writes the modules of a tower. Returns their types by the names of their folders, in order. Routes
    share modules without weights."""
    tower = side.tower
    settings = model.settings
    prefix = f"{side.folder}_" if side.folder else ""
    if _is_bag(model):
        is_rooted = settings.pooling == "idf_sqrt"
        route = {side.folder: f"{ROOT_MODULE}.RootStaticEmbedding" if is_rooted else _type_of(STATIC)}
        write_tokenizer(model.tensorizer, side, folder, truncated=True)
        write_tensors(folder / side.folder, MODEL_FILE, {TABLE: static_rows(tower)})
    else:
        route = {side.folder: _type_of(TRANSFORMER)}
        backbone = write_tower(model, side, folder)
        body: dict[str, Any] = {"max_seq_length": side.longest, "do_lower_case": False}
        if _has_two_lengths(model):
            body |= {"query_length": model.tensorizer.question_length, "document_length": side.longest}
        write_json_file(folder / side.folder, "sentence_bert_config.json", body)
        is_table = settings.static_questions and tower is model.question_model
        route[name := f"{prefix if is_table else ''}{len(route)}_{POOLING}"] = _type_of(POOLING)
        pooled_by = "mean" if is_table else _standard_pooling(model)
        # the key of the library's newest versions, and those of earlier ones, which other programs read
        mode = str(POOLINGS[pooled_by])
        old = {f"{OLD_KEY}{each}": mode_of(each) == mode_of(mode) for each in OLD_POOLINGS}
        width = backbone.config.hidden_size
        stated = {"embedding_dimension": width, "pooling_mode": mode, **old, "include_prompt": True}
        _write_module(folder / name, stated, {})
    # The linear layer after the pooling, with the rows of the dimensions that are kept: the projection, or a
    # layer that cuts before scaling.
    dense: dict[str, torch.Tensor] = {}
    activation = "none"
    if (layer := tower.encode_proj) is not None:
        dense = {WEIGHT: layer.weight, BIAS: layer.bias}
        dense = {key: tensor[: tower.dimension].detach().float() for key, tensor in dense.items()}
        activation = settings.projection_activation
    elif settings.dimensions and not _truncates(model):
        dense = {WEIGHT: torch.eye(tower.dimension, tower.pooled_width)}
    if dense:
        route[name := f"{prefix}{len(route)}_{DENSE}"] = _type_of(DENSE)
        rows, columns = dense[WEIGHT].shape
        stated = {
            "in_features": columns,
            "out_features": rows,
            "bias": BIAS in dense,
            "activation_function": ACTIVATIONS[activation],
        }
        _write_module(folder / name, stated, dense)
    if settings.normalize:
        route[f"{len(route)}_{NORMALIZE}"] = _type_of(NORMALIZE)
    return route


def _type_of(kind: str) -> str:
    """Returns the class path that the library imports for a kind of module. All versions have it; later ones
    also have others."""
    return f"{PACKAGE}models.{kind}"


def _write_module(folder: Path, stated: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    """Writes the settings of a module and its weights, if it has any."""
    folder.mkdir(exist_ok=True)
    write_json_file(folder, CONFIG, stated)
    if weights:
        write_tensors(folder, MODEL_FILE, weights)


def to_sentence_transformer(model: BiEncoder, *, source: str = "the model") -> Any:
    """Returns the model as a ``SentenceTransformer`` in memory, with weights of its own.

    Raises:
        InputError: the library cannot express it.
        ConfigError: sentence-transformers is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        write(model, Path(folder), source=source)
        return _loaded(Path(folder))


def _loaded(folder: Path) -> Any:
    """Opens a folder that ``write`` wrote. The library may run the folder's code if that is, byte for byte,
    this toolkit's own."""
    library = require(
        "sentence_transformers", extra="sentence-transformers", purpose="encoding with sentence-transformers"
    )
    code = folder / _CODE.name
    is_own = code.is_file() and code.read_bytes() == _CODE.read_bytes()
    with no_downloads(), tempfile.TemporaryDirectory() as baseline_of:
        # The library keeps a copy of the code under the folder's name and its hash: by this name, one copy
        # for all exports.
        (named := Path(baseline_of, "exported")).symlink_to(folder.absolute())
        return library.SentenceTransformer(
            str(named), device="cpu", local_files_only=True, trust_remote_code=is_own
        )


def encode(folder: Path, side: str, items: Sequence[Any]) -> np.ndarray:
    """Returns vectors by the library alone; passages are given as its users give them."""
    model = _loaded(folder)
    if side == "question":
        encoder = model.encode_query
        given: list[Any] = list(items)
    else:
        encoder = model.encode_document
        text = TextSettings(**own_text(look(folder)))
        shown = [presented(passage, text) for passage in items]
        given = [(part.title, part.text) if part.title else part.text for part in shown]
    return np.asarray(encoder(given, batch_size=_BATCH, show_progress_bar=False), np.float32)


def usage(model: BiEncoder) -> str:
    """Returns lines of Python that load the folder."""
    template = model.settings.title_template
    pair = repr(template.format(title="A title", text="A text.")) if template else '("A title", "A text.")'
    trusted = (
        f", trust_remote_code=True)  # {ROOT_MODULE}.py in this folder" if needs_own_code(model) else ")"
    )
    return f"""from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH"{trusted}
questions = model.encode_query(["a question"])
passages = model.encode_document([{pair}])  # a list, also of one; a passage without a title is its text
scores = model.similarity(questions, passages)
"""


FORMAT = Format(write, encode, usage, library="sentence-transformers")
