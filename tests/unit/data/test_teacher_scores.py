"""A teacher's scores reach the batch slot by slot, from text and from stored tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks
from dpr.core.records import Passage, TrainingSample
from dpr.data.collator import Collator
from dpr.data.loader import batch_loader, cut_into_batches, data_row
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.tokens import StoredTokens, open_tokens
from dpr.data.training_data import TrainingData
from dpr.formats import arrow_files
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from dpr.storage.durable import read_manifest
from tests.helpers.tiny import ListSource, encoder_folder, make_samples

OPTIONS = DataSetSettings()
A, B, C, D = (
    Passage(text, id=text, teacher_score=score)
    for text, score in (("ba", 4.0), ("be", -1.5), ("bi", None), ("bo", 1 / 3))
)


def scored(samples: list[TrainingSample]) -> list[TrainingSample]:
    """The same passage has another score in every row; some have none."""

    def passages(listed: tuple[Passage, ...], row: int) -> tuple[Passage, ...]:
        return tuple(
            passage if (row + place) % 4 == 3 else replace(passage, teacher_score=math.sin(17 * row + place))
            for place, passage in enumerate(listed)
        )

    lists = ("positives", "hard_negatives", "other_negatives")
    return [
        replace(sample, **{name: passages(getattr(sample, name), row) for name in lists})
        for row, sample in enumerate(samples)
    ]


@pytest.fixture(scope="module")
def tensorizer(tmp_path_factory: pytest.TempPathFactory) -> Tensorizer:
    return Tensorizer.load(encoder_folder(tmp_path_factory.mktemp("tokenizer")), sequence_length=24)


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingSet:
    """60 rows in parts of 20; the last part has no score."""
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(arrow_files, "BATCH_ROWS", 5)
    samples = make_samples(60, seed=4)
    write_training_set(tmp_path / "train.jsonl", [*scored(samples[:40]), *samples[40:]])
    return open_training_set(tmp_path / "train.jsonl", name="tiny")


def collate(tensorizer: Tensorizer, samples: list[TrainingSample], **options: Any) -> BiEncoderBatch:
    collator = Collator(tensorizer, num_hard=1, num_other=1, **options)
    return collator([data_row(ListSource(samples), row, OPTIONS) for row in range(len(samples))])


def same(found: torch.Tensor | None, expected: list[float]) -> None:
    assert found is not None and found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), np.array(expected, dtype=np.float32))


def test_every_slot_has_the_score_of_its_passage_for_its_question(tensorizer: Tensorizer) -> None:
    other = replace(A, teacher_score=-7.0)  # the same text beside another question
    batch = collate(
        tensorizer, [TrainingSample("ca", (A,), (B,), (C,)), TrainingSample("ce", (D,), (other,))]
    )
    same(batch.teacher_scores, [4.0, math.nan, -1.5, 1 / 3, -7.0, math.nan])
    assert len(batch.contexts) == 4


def test_a_batch_without_scores_has_none_and_scores_stay_on_the_host(tensorizer: Tensorizer) -> None:
    batch = collate(tensorizer, [TrainingSample("ca", (C,), (replace(A, teacher_score=None),))])
    assert batch.teacher_scores is None
    assert batch.to("meta").teacher_scores is None
    scored_batch = collate(tensorizer, [TrainingSample("ca", (C,), (A,))])
    same(scored_batch.to("meta").teacher_scores, [math.nan, 4.0, math.nan])


@pytest.mark.parametrize("workers", [0, 1])
def test_stored_tokens_give_the_scores_of_the_text(
    text: TrainingSet, tensorizer: Tensorizer, workers: int
) -> None:
    stored = open_tokens(text, tensorizer, OPTIONS)
    assert isinstance(stored, StoredTokens)
    found = [
        [batch.teacher_scores for batch in batches_of(source, tensorizer, Ranks(), workers=workers)]
        for source in (text, stored, stored)
    ]
    for ours, theirs in zip(found[0], found[1], strict=True):
        same(theirs, ours.tolist())  # type: ignore[union-attr]
    parts = sorted(Path(stored._folder).glob("part-*"))
    assert [np.load(part / "scores.npy").size > 0 for part in parts] == [True, True, False]
    assert read_manifest(stored._folder)["metadata"]["made_of"]["layout"] == 6


def test_the_fingerprint_of_a_user_s_data_changes_with_scores_and_not_without() -> None:
    class Mine(TrainingData):
        def __init__(self, samples: list[TrainingSample]) -> None:
            self.samples = samples

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, row: int) -> TrainingSample:
            return self.samples[row]

    plain = [TrainingSample("q", (Passage("p"),))]
    known = "e868e8ed60d2e0458bb3e17c"
    others = [[TrainingSample("q", (passage,))] for passage in (A, replace(A, teacher_score=5.0))]
    assert len({Mine(samples).fingerprint for samples in (plain, *others)}) == 3
    assert Mine(plain).fingerprint[:24] == known


def batches_of(
    source: Any, tensorizer: Tensorizer, ranks: Ranks, *, workers: int = 0
) -> list[BiEncoderBatch]:
    collator = Collator(tensorizer, num_hard=2, num_other=1, seed=7)
    global_batches = cut_into_batches(
        [(source, OPTIONS)], collator, global_batch_size=10, ranks=ranks, seed=3
    )
    keys = [(0, global_batch) for global_batch in range(global_batches.iterator.batches_per_epoch)]
    return (
        [global_batches[key] for key in keys]
        if not workers
        else list(batch_loader(global_batches, keys, num_workers=workers))
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("is_stored", [False, True])
def test_the_slots_of_two_ranks_are_those_of_one(
    text: TrainingSet, tensorizer: Tensorizer, is_stored: bool
) -> None:
    source = open_tokens(text, tensorizer, OPTIONS) if is_stored else text
    whole = batches_of(source, tensorizer, Ranks())
    halves = [batches_of(source, tensorizer, Ranks(rank, 2)) for rank in range(2)]
    for batch, *shares in zip(whole, *halves, strict=True):
        scores = [share.teacher_scores for share in shares]
        scores = [torch.full((20,), math.nan) if found is None else found for found in scores]
        same(torch.cat(scores), batch.teacher_scores.tolist())  # type: ignore[union-attr]
