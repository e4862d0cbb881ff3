"""``dpr export``."""

from __future__ import annotations

from dpr.cli.launch import launch
from dpr.config.export import ExportConfig


def main(argv: list[str]) -> int:
    """Writes a model in another program's format."""
    return launch("export", ExportConfig, _export, argv)


def _export(config: ExportConfig) -> None:
    from dpr.assembly.export import run

    run(config)
