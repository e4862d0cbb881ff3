"""A token store with any damage to any of its files gives the batches of the text."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from dpr.core.records import TrainingSample
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.tokens import StoredTokens, open_tokens
from dpr.formats import arrow_files
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from tests.fuzz.mutations import BYTES, JSON, mutate
from tests.fuzz.test_readers import CASES, FIRST
from tests.helpers.tiny import encoder_folder, make_samples

OPTIONS = DataSetSettings(query_prefix="ba")


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingSet:
    """24 rows in two parts."""
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(arrow_files, "BATCH_ROWS", 3)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    write_training_set(tmp_path / "train.jsonl", make_samples(24, seed=4))
    return open_training_set(tmp_path / "train.jsonl", name="tiny")


def tokens_of(source: Any, tensorizer: Tensorizer) -> list[Any]:
    """Everything that training could read of a set."""
    found = []
    for row in range(len(source)):
        sample = source[row]
        prefix = OPTIONS.query_prefix if isinstance(sample, TrainingSample) else None
        lists = (
            sample.positives,
            sample.hard_negatives,
            sample.other_negatives,
            source.known_positives(row)[:1],
        )
        found.append(
            (
                tensorizer.question_tokens([sample.question], prefix=prefix),
                *map(tensorizer.passage_tokens, lists),
            )
        )
    return found


def damage(folder: Path, rng: random.Random) -> str:
    """Damages a file of a store, or loses it, or puts another's in its place; returns which."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    file = rng.choice(files)
    kind = rng.randrange(8)
    if kind == 0:
        file.unlink()
    elif kind == 1:
        file.write_bytes(rng.choice(files).read_bytes())
    else:
        file.write_bytes(mutate(file.read_bytes(), rng, JSON if file.suffix == ".json" else BYTES))
    return f"{file.relative_to(folder)} {kind}"


def test_a_damaged_store_has_the_tokens_of_the_text(text: TrainingSet, tmp_path: Path) -> None:
    tensorizer = Tensorizer.load(
        encoder_folder(tmp_path / "tokenizer"), sequence_length=12, question_length=6
    )
    expected = tokens_of(text, tensorizer)
    assert isinstance(open_tokens(text, tensorizer, OPTIONS), StoredTokens)
    (folder,) = (path for path in (tmp_path / "cache").glob("tokens-*") if path.is_dir())
    shutil.copytree(folder, tmp_path / "whole")
    for case in range(FIRST, FIRST + max(1, CASES // 25)):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "whole", folder)
        done = damage(folder, random.Random(f"tokens {case}"))
        source = open_tokens(text, tensorizer, OPTIONS)
        assert isinstance(source, StoredTokens), (case, done)
        assert tokens_of(source, tensorizer) == expected, (case, done)
