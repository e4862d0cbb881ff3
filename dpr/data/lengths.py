"""How long the rows of a data set are, for grouping them: in characters, which are the same from text and from stored tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from dpr.core.records import Passage, TrainingSample
from dpr.data.negatives import AnySample

ROLES = ("positives", "hard_negatives", "other_negatives")


@runtime_checkable
class CountsCharacters(Protocol):
    """A data set that knows the characters of its rows without reading them one by one."""

    def character_counts(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Of every row the characters of its question (N,), and by role the characters (titles included) and number of passages (N, 2)."""
        ...


class ReadsRows(Protocol):
    """A data set whose rows are read when asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> AnySample: ...


def row_lengths(source: ReadsRows, *, num_hard: int, num_other: int) -> np.ndarray:
    """Characters that a row brings into a pool, (N,) int64: its question, a positive and the negatives it draws, each of average length."""
    questions, passages = source.character_counts() if isinstance(source, CountsCharacters) else _by_row(source)
    positive, hard, other = (passages[role] for role in ROLES)
    # As in drawing: the other negatives stand in where a row has no hard ones.
    hard = np.where(hard[:, 1:] > 0, hard, other)
    return questions + _expected(positive, 1) + _expected(hard, num_hard) + _expected(other, num_other)


def _expected(counts: np.ndarray, drawn: int) -> np.ndarray:
    """Characters of up to ``drawn`` passages of a list, rounded down; whole numbers are the same on every machine."""
    characters, number = counts[:, 0], counts[:, 1]
    lengths: np.ndarray = characters * np.minimum(number, drawn) // np.maximum(number, 1)
    return lengths


def _by_row(source: ReadsRows) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The same, reading every row."""
    questions = np.zeros(len(source), dtype=np.int64)
    passages = {role: np.zeros((len(source), 2), dtype=np.int64) for role in ROLES}
    for row in range(len(source)):
        sample = source[row]
        assert isinstance(sample, TrainingSample)  # token stores count characters by their text
        questions[row] = len(sample.question)
        for role in ROLES:
            listed: Sequence[Passage] = getattr(sample, role)
            passages[role][row] = sum(len(passage.text) + len(passage.title) for passage in listed), len(listed)
    return questions, passages
