"""``dpr embed`` and ``generate_embeddings.py``."""

from __future__ import annotations

from dpr.cli.launch import launch
from dpr.config.embedding import EmbedConfig


def main(argv: list[str]) -> int:
    """Turns one shard of a corpus into vectors."""
    return launch("gen_embs", EmbedConfig, _embed, argv)


def _embed(config: EmbedConfig) -> None:
    from dpr.assembly.embedding import run

    run(config)
