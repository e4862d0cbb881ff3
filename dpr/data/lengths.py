"""How long the rows of a data set are, for grouping them: in characters, which are the same from text and from stored tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpr.core.records import Passage, TrainingSample
from dpr.data.training_data import SampleSource

_LISTS = ("positives", "hard_negatives", "other_negatives")


def row_lengths(source: SampleSource, *, num_hard: int, num_other: int, num_positives: int = 1) -> np.ndarray:
    """Characters that a row brings into a pool, (N,) int64: its question, the positives and negatives it draws, each of average length."""
    questions, passages = source.character_counts() if hasattr(source, "character_counts") else _counts_by_row(source)
    positive, hard, other = (passages[name] for name in _LISTS)
    # As in drawing: the other negatives stand in where a row has no hard ones.
    hard = np.where(hard[:, 1:] > 0, hard, other)
    return questions + _expected(positive, num_positives) + _expected(hard, num_hard) + _expected(other, num_other)


def _expected(counts: np.ndarray, drawn: int) -> np.ndarray:
    """Characters of up to ``drawn`` passages of a list, rounded down; whole numbers are the same on every machine."""
    characters, number = counts[:, 0], counts[:, 1]
    lengths: np.ndarray = characters * np.minimum(number, drawn) // np.maximum(number, 1)
    return lengths


def _counts_by_row(source: SampleSource) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Characters of each row's question (N,), and by list the characters (titles included) and number of its passages (N, 2)."""
    questions = np.zeros(len(source), dtype=np.int64)
    passages = {name: np.zeros((len(source), 2), dtype=np.int64) for name in _LISTS}
    for row in range(len(source)):
        sample = source[row]
        assert isinstance(sample, TrainingSample)  # token stores count characters by their text
        questions[row] = len(sample.question)
        for name in _LISTS:
            listed: Sequence[Passage] = getattr(sample, name)
            passages[name][row] = sum(len(passage.text) + len(passage.title) for passage in listed), len(listed)
    return questions, passages
