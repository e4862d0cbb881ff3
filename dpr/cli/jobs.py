"""The commands that Hydra composes: each is a configuration, a schema, and the module of ``dpr.assembly`` that runs it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

from dpr.cli import arguments
from dpr.cli.launch import launch
from dpr.core.errors import ConfigError


def train(argv: list[str]) -> int:
    """``dpr train`` and ``train_dense_encoder.py``: trains a bi-encoder, or only evaluates one when no training data are named."""
    from dpr.config.training import BiEncoderTrainConfig

    return launch("biencoder_train_cfg", BiEncoderTrainConfig, _run("training"), argv)


def explain(argv: list[str]) -> int:
    """``dpr explain``: prints what a step of a training run is made of."""
    from dpr.config.explain import ExplainConfig

    return launch("explain", ExplainConfig, lambda config: print("\n".join(_run("explain", "explain")(config))), argv)


def ladder(argv: list[str]) -> int:
    """``dpr ladder``: trains, mines hard negatives with the model, and trains again."""
    from dpr.config.ladder import LadderConfig

    def climb(config: LadderConfig) -> Any:
        if arguments.under_launcher():
            raise ConfigError("dpr ladder starts its own processes; start it without torchrun, with ladder.processes=N")
        return _run("ladder")(config)

    return launch("ladder", LadderConfig, climb, argv)


def embed(argv: list[str]) -> int:
    """``dpr embed`` and ``generate_embeddings.py``: turns one shard of a corpus into vectors."""
    from dpr.config.embedding import EmbedConfig

    return launch("gen_embs", EmbedConfig, _run("embedding"), argv)


def retrieve(argv: list[str]) -> int:
    """``dpr retrieve`` and ``dense_retriever.py``: searches with a set of questions and evaluates what was found."""
    from dpr.config.retrieval import RetrievalConfig

    def search(config: RetrievalConfig) -> Any:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("retrieval runs in one process; start it without torchrun (a GPU is used when there is one)")
        return _run("retrieval")(config)

    return launch("dense_retriever", RetrievalConfig, search, argv)


def export(argv: list[str]) -> int:
    """``dpr export``: writes a model in another program's format."""
    from dpr.config.export import ExportConfig

    return launch("export", ExportConfig, _run("export"), argv)


def download(argv: list[str]) -> int:
    """``dpr download``: fetches published data and models by DPR's keys; without a key lists them."""
    from dpr.config.download import DownloadConfig

    keys: list[str] = []
    rest: list[str] = []
    for before, token in zip(["", *argv], argv, strict=False):
        is_key = "=" not in token and not token.startswith("-") and not before.startswith("-c") and not before.startswith("--config")
        (keys if is_key else rest).append(token)
    return launch("download", DownloadConfig, _run("download"), [*rest, *([f"resource=[{','.join(keys)}]"] if keys else [])])


def _run(module: str, function: str = "run") -> Callable[[Any], Any]:
    """The job of ``dpr.assembly.<module>``, imported when it begins: a mistake in the settings is told before that."""
    return lambda config: getattr(importlib.import_module(f"dpr.assembly.{module}"), function)(config)
