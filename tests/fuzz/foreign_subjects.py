"""Readers of folders that other libraries wrote."""

import json
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dpr.formats.model_folder import look
from dpr.models.folders.model_parts import ForeignTower
from dpr.models.folders.peft_adapter import adapter_tower
from dpr.models.folders.sentence_transformers import projected, static_tower
from dpr.models.folders.sentence_transformers_modules import described_settings, read_modules, stated_length
from dpr.models.settings import EncoderSettings
from tests.fuzz.mutations import BYTES, JSON
from tests.fuzz.subject import Files, Subject, contents
from tests.helpers.adapters import base_folder

_LIBRARY = "sentence_transformers"
_TYPES = {
    "question": f"{_LIBRARY}.models.Transformer",
    "ctx": f"{_LIBRARY}.models.Transformer",
    "pooling": f"{_LIBRARY}.models.Pooling",
}
_FILES: dict[str, Any] = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": f"{_LIBRARY}.models.Router"},
        {"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{_LIBRARY}.models.Normalize"},
    ],
    "router_config.json": {
        "types": _TYPES,
        "structure": {"query": ["question", "pooling"], "document": ["ctx", "pooling"]},
        "parameters": {"default_route": "document", "route_mappings": {}},
    },
    "config_sentence_transformers.json": {
        "prompts": {"query": "q: ", "document": "p: "},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
        "truncate_dim": 8,
        "dpr": {"title_template": "{title} {text}"},
    },
    "pooling/config.json": {"embedding_dimension": 16, "pooling_mode": "mean", "include_prompt": True},
    "question/sentence_bert_config.json": {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        "module_output_name": "token_embeddings",
        "query_length": 9,
    },
    "ctx/tokenizer_config.json": {"model_max_length": 24},
}


def _described(path: Path) -> None:
    folder = look(next(parent for parent in path.parents if (parent / "ctx").is_dir()))
    towers = read_modules(folder)
    described_settings(folder, towers, EncoderSettings())
    for tower, side in zip(towers, ("query", "document"), strict=True):
        stated_length(tower.body, side)


@cache
def _static_files() -> Files:
    from tokenizers import Tokenizer, models, pre_tokenizers

    with tempfile.TemporaryDirectory() as temporary:
        tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "ba": 1, "be": 2}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.enable_truncation(9)
        tokenizer.save(f"{temporary}/tokenizer.json")
        tensors = {"embeddings": torch.ones(3, 4)}
        save_file(tensors, f"{temporary}/model.safetensors")
        return contents(Path(temporary), "s")


@cache
def _dense_files() -> Files:
    activation = "torch.nn.modules.linear.Identity"
    config = {"in_features": 4, "out_features": 2, "bias": True, "activation_function": activation}
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / "config.json").write_text(json.dumps(config))
        tensors = {"linear.weight": torch.ones(2, 4), "linear.bias": torch.ones(2)}
        save_file(tensors, f"{temporary}/model.safetensors")
        return contents(Path(temporary), "d")


@cache
def _base() -> tempfile.TemporaryDirectory[str]:
    """A model for adapters, which goes when the tests end."""
    place = tempfile.TemporaryDirectory()
    base_folder(Path(place.name))
    return place


@cache
def _adapter_files() -> Files:
    config = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "bias": "none",
        "target_modules": ["query"],
        "use_rslora": True,
    }
    layers = [f"base_model.model.encoder.layer.{number}.attention.self.query" for number in range(2)]
    shapes = {"lora_A": (2, 16), "lora_B": (16, 2)}
    with tempfile.TemporaryDirectory() as temporary:
        text = json.dumps(config | {"base_model_name_or_path": _base().name, "rank_pattern": {}})
        (Path(temporary) / "adapter_config.json").write_text(text)
        tensors = {
            f"{layer}.{kind}.weight": torch.ones(*shape) for layer in layers for kind, shape in shapes.items()
        }
        save_file(tensors, f"{temporary}/adapter_model.safetensors")
        return contents(Path(temporary), "a")


_DESCRIBED: Files = {f"st/{name}": json.dumps(value).encode() for name, value in _FILES.items()}
_part = partial(Subject, weight=0.3)
_TOWER = ForeignTower(Path("d"), None, None, {})

FOREIGN: dict[str, Subject] = {
    **{
        f"sentence-transformers {name}": _part(f"st/{name}", lambda: _DESCRIBED, _described, JSON)
        for name in _FILES
    },
    "static tokenizer": _part(
        "s/tokenizer.json", _static_files, lambda path: static_tower(look(path.parent)), JSON
    ),
    "static table": _part(
        "s/model.safetensors", _static_files, lambda path: static_tower(look(path.parent)), BYTES
    ),
    "dense settings": _part(
        "d/config.json", _dense_files, lambda path: projected(_TOWER, [look(path.parent)]), JSON
    ),
    "dense weights": _part(
        "d/model.safetensors", _dense_files, lambda path: projected(_TOWER, [look(path.parent)]), BYTES
    ),
    "adapter settings": _part(
        "a/adapter_config.json",
        _adapter_files,
        lambda path: adapter_tower(look(path.parent)),
        JSON,
        weight=0.1,
    ),
    "adapter weights": _part(
        "a/adapter_model.safetensors",
        _adapter_files,
        lambda path: adapter_tower(look(path.parent)),
        BYTES,
        weight=0.1,
    ),
}
