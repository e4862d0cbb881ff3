"""Token ids of a training set, written once in parts and memory-mapped. Every sequence is checked whenever it
is read.

tokens-<key>/
  part-00000/  tokens.npy    (T,) uint16, or uint32 for large vocabularies: questions, and each passage as its
                             title followed by its text; no special tokens, nothing cut off
               passages.npy  (P,) records of passages and questions: identity, where the tokens are, how many
                             are the title's (-1: it has none), has_score
               rows.npy      (R,) records: where the row's slots are, the number of its question, how many slots
                             of each kind
               slots.npy     (N,) uint32 numbers of passages of this part: positives, hard negatives, other
                             negatives of each row
               scores.npy    (N,) float32 a teacher's scores of the slots, NaN: none; empty where the part has
                             none
  manifest.json              provenance, sizes and SHA-256 of all files; present means complete

A part is a step (dpr/storage/steps.py). When a store is opened, its files are first compared with their
hashes (``ensure_built``), which are computed once and then remembered.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from dpr.core.records import PassageTokens, StoredPassage, StoredSample
from dpr.formats.arrays import array_writers, map_array
from dpr.storage.durable import read_manifest
from dpr.storage.steps import Steps

NO_TITLE = -1
LAYOUT_VERSION = 6  # a change of what is stored must change it, so that old stores are not used

_PASSAGE = np.dtype(
    [
        ("identity_low", "<i8"),
        ("identity_high", "<i8"),
        ("start", "<i8"),
        ("length", "<i4"),
        ("title_length", "<i4"),
        ("has_score", "<u4"),
    ]
)
_ROW = np.dtype(
    [
        ("first_slot", "<i8"),
        ("question", "<i4"),
        ("positives", "<i4"),
        ("hard", "<i4"),
        ("other", "<i4"),
    ]
)
_ARRAYS = ("tokens", "passages", "rows", "slots", "scores")


class TokenPartWriter:
    """Collects the rows of one part in memory and writes them."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = np.dtype(dtype)
        self._tokens = array("H" if self._dtype.itemsize == 2 else "I")
        self._passages: list[tuple[Any, ...]] = []
        self._rows: list[tuple[Any, ...]] = []
        self._slots = array("I")
        self._scores = array("f")
        self.numbers: dict[Any, int] = {}
        """Numbers of the passages that are stored already; the caller fills it."""

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    def add_passage(self, passage: PassageTokens) -> int:
        """Stores a passage and returns the number by which rows name it."""
        start = len(self._tokens)
        self._tokens.extend(passage.title or ())
        self._tokens.extend(passage.text)
        length = len(self._tokens) - start
        title_length = NO_TITLE if passage.title is None else len(passage.title)
        self._passages.append((*passage.identity, start, length, title_length, passage.has_score))
        return len(self._passages) - 1

    def add_row(
        self,
        question: Sequence[int],
        positives: Sequence[int],
        hard: Sequence[int],
        other: Sequence[int],
        *,
        scores: Sequence[float] = (),
    ) -> None:
        """Stores the next row, with passages by their numbers. ``scores`` are a teacher's scores of all of
        them, NaN for a passage without one, or empty."""
        number = self.add_passage(PassageTokens(None, question, (0, 0), False))
        first_slot = len(self._slots)
        for numbers in (positives, hard, other):
            self._slots.extend(numbers)
        self._scores.extend(scores or [math.nan] * (len(self._slots) - first_slot))
        self._rows.append((first_slot, number, len(positives), len(hard), len(other)))

    def write(self, steps: Steps, number: int) -> None:
        """Writes the part as a step of a store."""
        tokens = np.array(self._tokens, dtype=self._dtype)
        slots = np.array(self._slots, dtype="<u4")
        scores = np.array(self._scores, dtype="<f4")
        if np.isnan(scores).all():
            scores = scores[:0]
        passages = np.array(self._passages, dtype=_PASSAGE)
        rows = np.array(self._rows, dtype=_ROW)
        contents = zip(_ARRAYS, (tokens, passages, rows, slots, scores), strict=True)
        files = {f"{_part(number)}/{name}.npy": content for name, content in contents}
        steps.write_step(number, array_writers(files))


class TokenPart:
    """One part of a store, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        # Slices of a plain view are several times cheaper than those of numpy's memmap class.
        self._tokens, self._passages, self._rows, self._slots, self._scores = (
            map_array(folder / f"{name}.npy").view(np.ndarray) for name in _ARRAYS
        )

    def passage(self, number: int) -> PassageTokens:
        low, high, start, length, title_length, has_score = self._passages[number].item()
        ids: list[int] = self._tokens[start : start + length].tolist()
        title = None if title_length == NO_TITLE else ids[:title_length]
        return PassageTokens(title, ids[max(title_length, 0) :], (low, high), bool(has_score))

    def sample(self, number: int) -> StoredSample:
        first_slot, question, positives, hard, other = self._rows[number].item()
        listed = slice(first_slot, first_slot + positives + hard + other)
        passages = [StoredPassage(self, slot) for slot in self._slots[listed].tolist()]
        # There are none where the part has none.
        for passage, score in zip(passages, self._scores[listed].tolist(), strict=False):
            passage.teacher_score = None if math.isnan(score) else score
        end = positives + hard
        return StoredSample(
            list(self.passage(question).text),
            tuple(passages[:positives]),
            tuple(passages[positives:end]),
            tuple(passages[end:]),
        )


class TokenStore:
    """A complete store, by row number."""

    def __init__(self, folder: Path) -> None:
        self._ends: list[int] = read_manifest(folder)["metadata"]["part_ends"]
        # Making a batch reads its rows several times; they are kept only until the batch is made.
        self._in_use: WeakValueDictionary[int, StoredSample] = WeakValueDictionary()
        self._parts = [TokenPart(folder / _part(number)) for number in range(len(self._ends))]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, row: int) -> StoredSample:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a token store with {len(self)} rows")
        sample = self._in_use.get(row)
        if sample is None:
            number = bisect_right(self._ends, row)
            start = self._ends[number - 1] if number else 0
            sample = self._in_use[row] = self._parts[number].sample(row - start)
        return sample


def _part(number: int) -> str:
    return f"part-{number:05d}"


def finish_store(steps: Steps, part_ends: Sequence[int]) -> None:
    """Marks a store as complete once all parts are written. ``part_ends`` are the rows at which each part
    ends."""
    metadata = {"cache": steps.folder.name, "made_of": steps.provenance, "part_ends": list(part_ends)}
    steps.write_manifest(metadata)


def token_dtype(largest_id: int) -> np.dtype[Any]:
    """Returns 16 bits if every token id fits, else 32."""
    return np.dtype("<u2" if largest_id < 2**16 else "<u4")
