"""The lengths by which rows are grouped: the same from text and from stored tokens, and what a row brings
into a pool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpr.core.records import Passage, TrainingSample
from dpr.data.loader import row_lengths
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.tokens import StoredTokens, open_tokens
from dpr.formats import arrow_batches
from dpr.formats.training_sets import open_training_set, write_training_set
from tests.helpers.tiny import ListSource, encoder_folder, make_samples


def passage(characters: int, title: str = "") -> Passage:
    return Passage("x" * characters, title)


def test_a_row_counts_what_it_draws_on_average() -> None:
    samples = [
        TrainingSample("abc", (passage(10, "ab"), passage(20)), (passage(5), passage(8)), (passage(100),)),
        # other negatives stand in for hard ones
        TrainingSample("", (passage(7),), (), (passage(4), passage(9))),
        TrainingSample("a", (passage(1),)),
    ]
    found = row_lengths(ListSource(samples), num_hard=1, num_other=0)
    assert found.tolist() == [3 + 16 + 6, 7 + 6, 2]
    assert row_lengths(ListSource(samples), num_hard=3, num_other=1).tolist() == [
        3 + 16 + 13 + 100,
        7 + 13 + 6,
        2,
    ]


def test_text_stored_tokens_and_rows_read_one_by_one_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(arrow_batches, "BATCH_ROWS", 7)  # several batches
    samples = make_samples(40, seed=3)
    samples[5] = TrainingSample(
        "\N{SNOWMAN}\N{CJK UNIFIED IDEOGRAPH-4E00}",
        (Passage("\N{GRINNING FACE}a", "\N{LATIN SMALL LETTER E WITH ACUTE}"),),
    )
    write_training_set(tmp_path / "train.jsonl", samples)
    text = open_training_set(tmp_path / "train.jsonl", name="tiny")
    stored = open_tokens(
        text, Tensorizer.load(encoder_folder(tmp_path / "bert"), sequence_length=12), DataSetSettings()
    )
    assert isinstance(stored, StoredTokens)
    by_row = row_lengths(ListSource([text[row] for row in range(len(text))]), num_hard=2, num_other=1)
    assert by_row[5] == 5 and by_row.dtype == np.int64 and len(set(by_row.tolist())) > 20
    for source in (text, stored):
        assert row_lengths(source, num_hard=2, num_other=1).tolist() == by_row.tolist()
