"""``dpr ladder``."""

from __future__ import annotations

from dpr.cli import arguments
from dpr.cli.launch import launch
from dpr.config.ladder import LadderConfig
from dpr.core.errors import ConfigError


def main(argv: list[str]) -> int:
    """Trains, mines hard negatives with the model, and trains again."""
    return launch("ladder", LadderConfig, _climb, argv)


def _climb(config: LadderConfig) -> float | None:
    if arguments.under_launcher():
        raise ConfigError("dpr ladder starts its own processes; start it without torchrun, with ladder.processes=N")
    from dpr.assembly.ladder import run

    return run(config)
