"""Features for grouping rows by words are near where words are shared, and the same everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from dpr.core.records import Passage, TrainingSample
from dpr.data.pairs import PseudoPairs
from dpr.data.row_words import row_words
from dpr.data.training_data import TrainingData

ROWS = [
    ("what causes dry mouth", "dry mouth may be caused by medicines", "Mouth"),
    ("how is dry mouth treated", "chew gum to treat a dry mouth", "Mouth"),
    ("what causes gout", "gout may be caused by uric acid", "Gout"),
    ("how is gout treated", "drink water to treat gout", "Gout"),
    ("which acid", "gout may be caused by uric acid", "Gout"),
    ("", "", ""),
    *((f"what causes thing{number}", f"thing{number} may be caused by", "Thing") for number in range(20)),
    *((f"how is thing{number} treated", f"it is to treat thing{number}", "Thing") for number in range(20)),
]


class Rows(TrainingData):
    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, row: int) -> TrainingSample:
        question, text, title = ROWS[row]
        return TrainingSample(question, (Passage(text, title), Passage("another")))


def test_rows_that_share_rare_words_are_near() -> None:
    vectors = row_words(Rows())["vector"].astype(np.int64)
    cosines = vectors @ vectors.T / 4080**2
    assert np.allclose(np.diag(cosines)[:5], 1, atol=0.01) and not vectors[5].any()
    related, others = (
        [cosines[pair] for pair in ((0, 1), (2, 3), (2, 4))],
        [cosines[pair] for pair in ((0, 2), (0, 3), (1, 2), (1, 3))],
    )
    assert min(related) > max(others) + 0.05


def test_rows_have_one_number_where_they_have_one_positive() -> None:
    positives = row_words(Rows())["positive"].tolist()
    assert positives[2] == positives[4] and len(set(positives)) == len(ROWS) - 1


def test_products_are_exact_in_float32_in_any_order() -> None:
    vectors = row_words(Rows())["vector"]
    assert np.sqrt(np.square(vectors.astype(np.int64)).sum(1)).max() <= 4095
    longest = np.full((1, 512), 180, dtype=np.int64)  # 4,073 long, every partial sum as large as it can be
    for one in (vectors.astype(np.int64), longest):
        exact = one @ one.T
        for order in (slice(None), slice(None, None, -1), np.random.default_rng(0).permutation(512)):
            assert (one[:, order].astype(np.float32) @ one[:, order].astype(np.float32).T == exact).all()


def test_another_process_that_orders_sets_of_words_otherwise_finds_the_same() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_word_groups as t,"
        " dpr.data.row_words as w; sys.stdout.buffer.write(w.row_words(t.Rows()).tobytes())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert found.stdout == row_words(Rows()).tobytes()


def test_pairs_of_one_document_count_as_having_one_positive(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    rows = [
        {"_id": str(row), "title": f"title {row // 2}", "text": f"word{row} other{row} more of it {row}"}
        for row in range(40)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    positives = row_words(PseudoPairs(file))["positive"]
    assert len(set(positives.tolist())) == 20 and (positives[::2] == positives[1::2]).all()
