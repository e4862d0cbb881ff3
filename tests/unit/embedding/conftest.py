"""A checkpoint and a corpus to embed."""

import random
from pathlib import Path

import pytest
import torch

from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from dpr.storage.durable import durable_folder
from tests.helpers.tiny import sentence, tiny_model

NUM_PASSAGES = 53


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="package")
def embedding_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds ``model``, a checkpoint, and ``corpus.tsv``. Nothing may change it."""
    folder = tmp_path_factory.mktemp("embedding")
    with durable_folder(folder / "model") as target:
        tiny_model(folder / "encoder", dtype=torch.float32).write_to(target)
    rng = random.Random(0)
    rows = (
        Passage(sentence(rng, rng.randint(1, 30)), sentence(rng, 2), f"p{row}") for row in range(NUM_PASSAGES)
    )
    write_passages(folder / "corpus.tsv", rows)
    return folder
