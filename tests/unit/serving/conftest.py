"""A run folder of a small corpus, searched both ways."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dpr.cli.jobs import retrieve
from tests.unit.retrieval.conftest import World, world

__all__ = ["world"]


@pytest.fixture(scope="session")
def run_folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the world with a search.json: hybrid, equal shares."""
    folder = tmp_path_factory.mktemp("served") / "run"
    shutil.copytree(world.folder, folder)
    arguments = [
        f"model_file={folder / 'model'}",
        f"encoded_ctx_files=[{folder / 'vectors_*'}]",
        f"qa_dataset={folder / 'questions.jsonl'}",
        f"ctx_datasets=[{folder / 'corpus.tsv'}]",
    ]
    assert retrieve([*arguments, "hybrid=linear", "hybrid_weight=0.5", "n_docs=5", f"search_folder={folder}"]) == 0
    return folder
