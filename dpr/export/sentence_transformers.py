"""A model as a folder of sentence-transformers, with one copy of the weights, which plain transformers loads too.

A shared tower is the library's plain layout, two towers are one Router with a route for queries and one for documents. Titles are the first
text of a pair, ``(title, text)``; where the model joins title and text by a template, what is encoded is the joined text. Modules have the
names that the library gives them (``1_Pooling``), by which programs that serve such folders find them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.lazy import require, version_of
from dpr.core.offline import no_downloads
from dpr.core.records import Passage
from dpr.data.presentation import presented
from dpr.data.settings import TextSettings
from dpr.export.checking import in_order
from dpr.export.onnx_graph import write_states_graph
from dpr.export.registry import Format
from dpr.export.tower_files import (
    refuse,
    refuse_one_sided_apostrophes,
    refuse_unknown_vectors,
    sides,
    standard_backbone,
    standard_pooling,
    static_rows,
    write_backbone,
    write_tokenizer,
)
from dpr.formats import checkpoints
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from dpr.models.pooling import IdfPooling
from dpr.models.trials import is_static
from dpr.storage.durable import durable_file, read_json

LIBRARY = "config_sentence_transformers.json"
OWN = "dpr"
"""Under this key the library's file states what it has no place for: the title template, and that questions' apostrophes become plain."""
_MODULES = "sentence_transformers.models"  # names that all versions know; later ones have others besides
_POOLINGS = {"cls": "cls", "mean": "mean", "weighted_mean": "weightedmean", "max": "max", "last": "lasttoken"}
_OLD_POOLINGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
ROOT_MODULE = "root_static_embedding"
"""Of ``idf_sqrt``: the file of this name in the folder, which is a copy of the module here."""
_CODE = Path(__file__).with_name(f"{ROOT_MODULE}.py")
_BATCH = 8
_NAMES = ("query", "document", "passage", "corpus")


def require_sayable(model: BiEncoder, source: str) -> None:
    """InputError where what decides its vectors cannot be said there."""
    refuse_unknown_vectors(model, source)
    refuse_one_sided_apostrophes(model, source)
    settings = model.settings
    refuse({f"it has a prompt called {name}": name in settings.prompts for name in _NAMES}, source, hint="the library's own names")
    differ = _is_bag(model) and settings.shared and model.tensorizer.question_length != settings.sequence_length
    refuse({"one tokenizer for texts of two lengths": differ}, source, hint="give encoder.question_length the value of sequence_length")
    is_scaled = settings.normalize and not settings.projection_dim  # a projection has a bias, to which the scale before it matters
    weighted = {
        "its pooling (idf_sqrt) counts the tokens of a transformer by the root of how often they occur": settings.pooling == "idf_sqrt",
        "its pooling (idf) weights the tokens of a transformer; the library divides by their sum, which only scaled vectors without a "
        "projection bear": settings.pooling == "idf" and not is_scaled,
    }
    refuse({} if is_static(model.question_model.backbone) else weighted, source, hint="to=onnx writes it for onnxruntime")


def write(model: BiEncoder, folder: Path, *, source: str) -> None:
    """Fills ``folder``.

    Raises:
        InputError: what decides its vectors cannot be said there.
    """
    require_sayable(model, source)
    settings = model.settings
    routes = [_write_route(model, folder, *side) for side in sides(model)]
    if needs_own_code(model):
        with durable_file(folder / _CODE.name, "wb") as file:
            file.write(_CODE.read_bytes())
    if settings.shared:
        modules = [(kind, path) for path, kind in routes[0].items()]
    else:
        modules = [("Router", "")]
        structure = {"query": list(routes[0]), "document": list(routes[1])}
        types = {name: _type(kind) for route in routes for name, kind in route.items()}
        parameters = {"default_route": "document", "allow_empty_key": True}
        checkpoints.write_json_file(folder, "router_config.json", {"types": types, "structure": structure, "parameters": parameters})
    listed = [{"idx": row, "name": str(row), "path": path, "type": _type(kind)} for row, (kind, path) in enumerate(modules)]
    checkpoints.write_json_file(folder, "modules.json", listed)
    checkpoints.write_json_file(folder, LIBRARY, _library(model))


def _type(kind: str) -> str:
    """What the library imports for a module."""
    return f"{ROOT_MODULE}.{kind}" if kind == "RootStaticEmbedding" else f"{_MODULES}.{kind}"


def needs_own_code(model: BiEncoder) -> bool:
    """Whether the library has no module for it, so that the folder holds one."""
    return model.settings.pooling == "idf_sqrt"


def _library(model: BiEncoder) -> dict[str, Any]:
    settings = model.settings
    versions = {name: version_of(package) for name, package in (("transformers", "transformers"), ("pytorch", "torch"))}
    versions["sentence_transformers"] = version_of("sentence-transformers") or "5.4.0"
    found: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        "__version__": versions,
        "prompts": {"query": settings.query_prompt, "document": settings.passage_prompt, **settings.prompts},
        "default_prompt_name": None,
        "similarity_fn_name": model.similarity,
        OWN: {"title_template": settings.title_template, "plain_apostrophes": settings.plain_apostrophes and not settings.shared},
    }
    if _truncates(model):
        found["truncate_dim"] = model.dimension
    if _has_two_lengths(model):
        found["requirements"] = {"sentence-transformers": {"specifier": ">=6.0", "reason": "queries and documents have different lengths"}}
    return found


def _has_two_lengths(model: BiEncoder) -> bool:
    return model.settings.shared and model.tensorizer.question_length != model.settings.sequence_length


def _truncates(model: BiEncoder) -> bool:
    """Whether the library cuts vectors, which it does after all modules. Before scaling, and behind a projection, a layer does."""
    return bool(model.settings.dimensions) and not model.settings.normalize and model.question_model.encode_proj is None


def _is_bag(model: BiEncoder) -> bool:
    """Whether it can be a ``StaticEmbedding``, the mean over the words of one text without special tokens, or our own kind of one."""
    adds_nothing = model.tensorizer.tokenizer.num_special_tokens_to_add(pair=False) == 0
    is_mean = adds_nothing and standard_pooling(model) == "mean"
    return is_static(model.question_model.backbone) and (is_mean or needs_own_code(model))


def _write_route(model: BiEncoder, folder: Path, name: str, tower: Encoder, longest: int, plain: bool) -> dict[str, str]:
    """Writes the modules of a tower; returns their kinds by the names of their folders, in order. Routes share what has no weights."""
    prefix = f"{name}_" if name else ""
    body = folder / name
    tokens: dict[str, Any] = {"longest": longest, "plain_apostrophes": plain}
    if _is_bag(model):
        route = {name: "RootStaticEmbedding" if needs_own_code(model) else "StaticEmbedding"}
        write_tokenizer(model.tensorizer, body, truncated=True, **tokens)
        checkpoints.write_tensors(body, "model.safetensors", {"embedding.weight": static_rows(tower)})
    else:
        route = {name: "Transformer"}
        backbone = standard_backbone(tower, max(longest, model.settings.sequence_length))
        write_backbone(backbone, body)
        write_tokenizer(model.tensorizer, body, **tokens)
        lengths = {"query_length": model.tensorizer.question_length, "document_length": longest} if _has_two_lengths(model) else {}
        checkpoints.write_json_file(body, "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False, **lengths})
        if isinstance(tower.pooling, IdfPooling) and not is_static(tower.backbone):
            route[_written(folder, f"{prefix}1_WordWeights", *_word_weights(model, tower.pooling))] = "WordWeights"
        route[_written(folder, f"{len(route)}_Pooling", _pooling(model, backbone.config.hidden_size))] = "Pooling"
    if (dense := _dense(model, tower)) is not None:
        route[_written(folder, f"{prefix}{len(route)}_Dense", *dense)] = "Dense"
    if model.settings.normalize:
        route[f"{len(route)}_Normalize"] = "Normalize"
    return route


def _written(folder: Path, name: str, config: dict[str, Any], weights: dict[str, torch.Tensor] | None = None) -> str:
    """The name of a module whose files are written."""
    (folder / name).mkdir(exist_ok=True)
    checkpoints.write_json_file(folder / name, "config.json", config)
    if weights is not None:
        checkpoints.write_tensors(folder / name, "model.safetensors", weights)
    return name


def _pooling(model: BiEncoder, width: int) -> dict[str, Any]:
    """With the keys of the library's newest versions and of those before, which other programs read."""
    mode = _POOLINGS[standard_pooling(model)]
    old = {f"pooling_mode_{name}": name.removesuffix("_tokens").removesuffix("_token") == mode for name in _OLD_POOLINGS}
    return {"embedding_dimension": width, "pooling_mode": mode, **old, "include_prompt": True}


def _word_weights(model: BiEncoder, pooling: IdfPooling) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The weights of ``idf``, by token. The library divides by their sum where the model divides by the number of tokens; what scales
    vectors makes up for it."""
    weights = pooling.token_weights.detach().cpu().float()
    tokens = model.tensorizer.tokenizer.convert_ids_to_tokens(range(len(weights)))
    words = [f"[no token {number}]" if token is None else token for number, token in enumerate(tokens)]
    config = {"vocab": words, "word_weights": dict(zip(words, weights.tolist(), strict=True)), "unknown_word_weight": 1}
    return config, {"emb_layer.weight": weights[:, None].contiguous()}


def _dense(model: BiEncoder, tower: Encoder) -> tuple[dict[str, Any], dict[str, torch.Tensor]] | None:
    """The linear layer behind the pooling, with the rows of the dimensions that are kept: the projection, or what cuts before scaling."""
    if tower.encode_proj is not None:
        layer = {"linear.weight": tower.encode_proj.weight, "linear.bias": tower.encode_proj.bias}
        weights = {name: tensor[: tower.dimension].detach().float() for name, tensor in layer.items()}
    elif model.settings.dimensions and not _truncates(model):
        weights = {"linear.weight": torch.eye(tower.dimension, int(tower.config.hidden_size))}
    else:
        return None
    rows, columns = weights["linear.weight"].shape
    activation = f"torch.nn.modules.{'activation.Tanh' if model.settings.projection_activation == 'tanh' else 'linear.Identity'}"
    return {"in_features": columns, "out_features": rows, "bias": "linear.bias" in weights, "activation_function": activation}, weights


def write_graphs(model: BiEncoder, folder: Path, *, source: str) -> None:
    """Writes ``onnx/model.onnx`` beside each transformer in a written folder: the states that its other modules pool.

    Raises:
        ConfigError: the packages of the extra ``onnx`` are not installed.
        InputError: there is no transformer, or it cannot be traced.
    """
    refuse({"it has no transformer for a graph of ONNX": _is_bag(model)}, source, hint="leave out onnx=true; to=onnx has its vectors")
    for name, tower, longest, _ in sides(model):
        (folder / name / "onnx").mkdir()
        write_states_graph(standard_backbone(tower, longest), folder / name / "onnx" / "model.onnx", source=source)


def to_sentence_transformer(model: BiEncoder, *, source: str = "the model") -> Any:
    """The model as a ``SentenceTransformer`` in memory, with weights of its own.

    Raises:
        InputError: it cannot be one.
        ConfigError: sentence-transformers is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        write(model, Path(folder), source=source)
        return _loaded(Path(folder))


def _loaded(folder: Path) -> Any:
    """What ``write`` wrote. The library runs the folder's code if that is, byte for byte, this toolkit's own."""
    library = require("sentence_transformers", extra="sentence-transformers", purpose="encoding with sentence-transformers")
    code = folder / _CODE.name
    is_own = code.is_file() and code.read_bytes() == _CODE.read_bytes()
    with no_downloads(), tempfile.TemporaryDirectory() as beside:
        # The library keeps a copy of the code under the folder's name and its hash: by this name, one copy for all exports.
        (named := Path(beside, "exported")).symlink_to(folder.absolute())
        return library.SentenceTransformer(str(named), device="cpu", local_files_only=True, trust_remote_code=is_own)


def encode(folder: Path, side: str, items: Sequence[Any]) -> np.ndarray:
    """Vectors by the library alone; passages as its users give them."""
    model = _loaded(folder)
    if side == "question":
        return np.asarray(model.encode_query(list(items), batch_size=_BATCH, show_progress_bar=False), np.float32)
    template = read_json(folder / LIBRARY)[OWN]["title_template"]

    def document(passage: Passage) -> Any:
        shown = presented(passage, TextSettings(title_template=template))
        return (shown.title, shown.text) if shown.title else shown.text

    def encoded(passages: list[Passage]) -> np.ndarray:
        return np.asarray(
            model.encode_document([document(each) for each in passages], batch_size=_BATCH, show_progress_bar=False), np.float32
        )

    return in_order(items, encoded, encoded)


def usage(model: BiEncoder) -> str:
    """How it is loaded."""
    template = model.settings.title_template
    pair = repr(template.format(title="A title", text="A text.")) if template else '("A title", "A text.")'
    trusted = f", trust_remote_code=True)  # {ROOT_MODULE}.py in this folder" if needs_own_code(model) else ")"
    return f"""from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH"{trusted}
questions = model.encode_query(["a question"])
passages = model.encode_document([{pair}])  # a list, also of one; a passage without a title is its text
scores = model.similarity(questions, passages)
"""


FORMAT = Format(require_sayable, write, encode, usage, library="sentence_transformers", install="sentence-transformers")
