"""``dpr retrieve`` and ``dense_retriever.py``."""

from __future__ import annotations

import os

from dpr.cli.launch import launch
from dpr.config.retrieval import RetrievalConfig
from dpr.core.errors import ConfigError


def main(argv: list[str]) -> int:
    """Searches with a set of questions and evaluates what was found."""
    return launch("dense_retriever", RetrievalConfig, _retrieve, argv)


def _retrieve(config: RetrievalConfig) -> float | None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("retrieval runs in one process; start it without torchrun (a GPU is used when there is one)")
    from dpr.assembly.retrieval import run

    return run(config)
