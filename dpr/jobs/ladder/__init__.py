"""``dpr ladder``: commands run one after another as stages; each runs once, and again only when its settings or inputs have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpr.jobs.ladder.settings import LadderConfig


def run(config: LadderConfig) -> float | None:
    """Runs all stages; returns the best validation value of the last round."""
    from dpr.jobs.ladder.rounds import run

    return run(config)
