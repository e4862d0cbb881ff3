"""``dpr explain``."""

from __future__ import annotations

from dpr.cli.launch import launch
from dpr.config.explain import ExplainConfig


def main(argv: list[str]) -> int:
    """Prints what a step of a training run is made of."""
    return launch("explain", ExplainConfig, _explain, argv)


def _explain(config: ExplainConfig) -> None:
    from dpr.assembly.explain import explain

    for line in explain(config):
        print(line)
