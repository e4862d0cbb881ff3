"""Settings that do nothing beside the others: each command names them, and sets them to their defaults."""

from typing import Any

import pytest

from dpr.cli.main import COMMANDS
from dpr.core.settings import Settings, leaves, unused_keys
from tests.helpers.needs import put

MODEL = {"model_file": "runs/first"}
TRAINING = {"train_datasets": "train.json"}
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "train",
        MODEL,
        "train.batch_size loss.kl_weight seed tracking.wandb encoder.dropout",
        "train.precision",
    ),
    ("train", MODEL, "encoder.pretrained do_lower_case", "loss.temperature"),
    (
        "train",
        MODEL | {"dev_datasets": "d"},
        "train.learning_rate",
        "train.hard_negatives train.dev_batch_size",
    ),
    ("train", TRAINING, "train.dev_batch_size train.eval_at_start train.keep", "train.batch_size seed"),
    ("train", TRAINING, "encoder.lora_rank loss.teacher_temperature", "encoder.pretrained train.num_workers"),
    ("train", TRAINING | {"encoder.adapter": "lora"}, "encoder.allow_other_prompts", "encoder.lora_rank"),
    ("train", TRAINING | {"loss.kl_weight": 0.5}, "loss.margin_mse_scale", "loss.teacher_temperature"),
    ("train", TRAINING | {"loss.nll_weight": 0.0}, "loss.guide", "loss.dimensions"),
    ("train", TRAINING | {"train.eval_every_steps": 9}, "train.eval_per_epoch", "train.eval_every_steps"),
    ("retrieve", {"indexer.kind": "bm25"}, "model_file encoder.pooling indexer.ef_search", "indexer.k1"),
    ("retrieve", {}, "indexer.k1 hybrid_weight hybrid_depth index_path", "model_file n_docs"),
    ("retrieve", {"hybrid": "linear"}, "tune_metric", "hybrid_weight indexer.k1 bm25_index_path"),
    ("retrieve", {"indexer.kind": "hnsw"}, "indexer.factory", "indexer.store_n index_path"),
    ("evaluate", {"run_file": "x"}, "n_docs systems data precision", "qrels"),
    ("evaluate", {"set": "x", "systems": ["bm25"]}, "model_file qrels", "bm25.k1 n_docs"),
    ("export", {"to": "lancedb"}, "model_file encoder.pooling", "vectors metadata table"),
    ("export", {"to": "onnx"}, "vectors allow_other_vectors", "model_file"),
    ("merge", {}, "weights metric", "tuned"),
    ("mine", {}, "vectors prompt precision encoder.pooling", "per_question processes"),
    ("mine", MODEL, "processes", "vectors precision"),
    ("score", {"cross_encoder": "x"}, "corpus hybrid_weight processes", "precision"),
    ("check-data", {}, "overwrite device", "strict"),
    ("prepare", {"sources": ["train.json"]}, "rounds words", "to question"),
    ("prepare", {"sources": ["corpus.tsv"], "pairs": "mixed"}, "to words question", "rounds"),
    ("download", {}, "output_dir", "resource"),
]


@pytest.mark.parametrize(("command", "values", "unused", "used"), CASES)
def test_what_does_nothing_is_known(command: str, values: dict[str, Any], unused: str, used: str) -> None:
    config: Settings = COMMANDS[command].settings_class()()
    for key, value in values.items():
        put(config, key, value)
    found = set(unused_keys(config))
    assert found >= set(unused.split())
    assert not found & {*used.split(), *values}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_does_nothing_is_named_as_it_is_called(command: str) -> None:
    """A misspelt name would never be told."""
    config: Settings = COMMANDS[command].settings_class()()
    names = {*leaves(config), *(key.rpartition(".")[0] for key in leaves(config))}
    assert set(config.unused()) <= names
