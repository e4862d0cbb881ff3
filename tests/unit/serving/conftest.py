"""A run folder of a small corpus, searched both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.retrieval.conftest import World, searchable, world

__all__ = ["world"]


@pytest.fixture(scope="session")
def run_folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid of equal shares."""
    return searchable(world, tmp_path_factory.mktemp("served") / "run", weight=0.5)
