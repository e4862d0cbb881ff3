"""Token ids of a training set: written once in parts, memory-mapped, every sequence checked whenever it is
read.

tokens-<key>/
  part-00000/  tokens.npy    (T,) uint16, or uint32 for large vocabularies: questions, and each passage as its
                             title followed by its text; no special tokens, nothing cut off
               passages.npy  (P,) records of passages and questions: identity, where the tokens are, how many
                             are the title's (-1: it has none), has_score, CRC-32
               rows.npy      (R,) records: where the row's slots are, the number of its question, how many slots
                             of each kind, CRC-32
               slots.npy     (N,) uint32 numbers of passages of this part: positives, hard negatives, other
                             negatives of each row
               scores.npy    (N,) float32 a teacher's scores of the slots, NaN: none; empty where the part has
                             none
  manifest.json              what it is made of, sizes and SHA-256 of all files; present means complete

A part is a step (dpr/storage/steps.py). The CRC-32 of a record covers the record itself and the tokens (slots,
scores) that it points to. So opening a store of any size reads only the manifest, and damage is found before
it is used.
"""

from __future__ import annotations

import math
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import PassageTokens, StoredPassage, StoredSample, StoreFacts
from dpr.formats.arrays import array_writers, map_array
from dpr.storage.durable import read_manifest
from dpr.storage.steps import Steps

NO_TITLE = -1
LAYOUT_VERSION = 4  # a change of what is stored must change it, so that old stores are not used

_PASSAGE = np.dtype(
    [
        ("identity_low", "<i8"),
        ("identity_high", "<i8"),
        ("start", "<i8"),
        ("length", "<i4"),
        ("title_length", "<i4"),
        ("has_score", "<u4"),
        ("check", "<u4"),
    ]
)
_ROW = np.dtype(
    [
        ("first_slot", "<i8"),
        ("question", "<i4"),
        ("positives", "<i4"),
        ("hard", "<i4"),
        ("other", "<i4"),
        ("check", "<u4"),
    ]
)
_CHECK_BYTES = 4
_SLOT = np.dtype("<u4")
_SCORE = np.dtype("<f4")
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
        """For the caller: of the passages that are stored already."""

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    def add_passage(self, passage: PassageTokens) -> int:
        """Stores a passage; returns the number by which rows name it."""
        start = len(self._tokens)
        self._tokens.extend(passage.title or ())
        self._tokens.extend(passage.text)
        length = len(self._tokens) - start
        title_length = NO_TITLE if passage.title is None else len(passage.title)
        self._passages.append((*passage.identity, start, length, title_length, passage.has_score, 0))
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
        """Stores the next row; passages by their numbers. ``scores`` are a teacher's of all of them, NaN
        where there is none, or empty."""
        number = self.add_passage(PassageTokens(None, question, (0, 0), False))
        first_slot = len(self._slots)
        for numbers in (positives, hard, other):
            self._slots.extend(numbers)
        self._scores.extend(scores or [math.nan] * (len(self._slots) - first_slot))
        self._rows.append((first_slot, number, len(positives), len(hard), len(other), 0))

    def write(self, steps: Steps, number: int) -> None:
        """Writes the part as a step of a store."""
        tokens = np.array(self._tokens, dtype=self._dtype)
        slots = np.array(self._slots, dtype=_SLOT)
        scores = np.array(self._scores, dtype=_SCORE)
        if np.isnan(scores).all():
            scores = scores[:0]
        passages = np.array(self._passages, dtype=_PASSAGE)
        for index, (_, _, start, length, *_) in enumerate(self._passages):
            passages["check"][index] = _check(passages[index].tobytes(), tokens[start : start + length])
        rows = np.array(self._rows, dtype=_ROW)
        for index, (first_slot, _, *counts, _) in enumerate(self._rows):
            listed = slice(first_slot, first_slot + sum(counts))
            rows["check"][index] = _check(rows[index].tobytes(), slots[listed], scores[listed])
        contents = zip(_ARRAYS, (tokens, passages, rows, slots, scores), strict=True)
        steps.write_step(
            number, array_writers({f"{_part(number)}/{name}.npy": content for name, content in contents})
        )


class TokenPart:
    """One part, mapped."""

    def __init__(self, store: Path, number: int, num_rows: int, metadata: StoreFacts) -> None:
        self._store = store
        self._folder = store / _part(number)
        self._metadata = metadata
        # Slices of a plain view are several times cheaper than those of numpy's memmap class.
        self._tokens, self._passages, self._rows, self._slots, self._scores = (
            map_array(self._folder / f"{name}.npy").view(np.ndarray) for name in _ARRAYS
        )
        dtypes = [array.dtype for array in (self._passages, self._rows, self._slots, self._scores)]
        if (
            dtypes != [_PASSAGE, _ROW, _SLOT, _SCORE]
            or self._tokens.dtype not in (np.uint16, np.uint32)
            or len(self._rows) != num_rows
            or len(self._scores) not in (0, len(self._slots))
        ):
            raise InputError("not a part of a token store", file=self._folder)

    def passage(self, number: int) -> PassageTokens:
        if number >= len(self._passages):
            self._refuse("passages.npy", number)
        record = self._passages[number]
        low, high, start, length, title_length, has_score, check = record.item()
        tokens = self._tokens[start : start + length]
        if len(tokens) != length or _check(record.tobytes(), tokens) != check:
            self._refuse("passages.npy", number)
        ids: list[int] = tokens.tolist()
        if title_length == NO_TITLE:
            return PassageTokens(None, ids, (low, high), bool(has_score))
        split = max(title_length, 0)
        return PassageTokens(ids[:split], ids[split:], (low, high), bool(has_score))

    def sample(self, number: int) -> StoredSample:
        record = self._rows[number]
        first_slot, question, positives, hard, other, check = record.item()
        listed = slice(first_slot, first_slot + positives + hard + other)
        slots = self._slots[listed]
        scores = self._scores[listed]
        if _check(record.tobytes(), slots, scores) != check:
            self._refuse("rows.npy", number)
        passages = [StoredPassage(self, slot) for slot in slots.tolist()]
        # There are none where the part has none.
        for passage, score in zip(passages, scores.tolist(), strict=False):
            passage.teacher_score = None if math.isnan(score) else score
        text = self.passage(question).text
        end = positives + hard
        return StoredSample(
            list(text),
            tuple(passages[:positives]),
            tuple(passages[positives:end]),
            tuple(passages[end:]),
        )

    def _refuse(self, name: str, number: int) -> NoReturn:
        # The next start verifies all parts of an unfinished store and rebuilds the damaged ones.
        with suppress(OSError, InputError):
            Steps(self._store, self._metadata).reopen()
        found = f"the token store is damaged: record {number} of {name} is not what was written"
        hint = "rerun the command to rebuild the damaged part; train.token_store=off trains from the text"
        raise InputError(found, file=self._folder, hint=hint)


class TokenStore:
    """A complete store, by row number.

    Raises:
        InputError: it is unfinished or made of other ``metadata``, or files are missing or of another size.
    """

    def __init__(self, folder: Path, metadata: StoreFacts) -> None:
        manifest = read_manifest(folder)
        ends = manifest["metadata"].get("part_ends")
        if manifest["metadata"].get("made_of") != metadata or not _are_ends(ends):
            raise InputError("is a token store of other data or settings", file=folder)
        for name, entry in manifest["files"].items():
            if not (folder / name).is_file() or (folder / name).stat().st_size != entry["bytes"]:
                raise InputError(f"{name} is missing or of another size", file=folder)
        self._ends: list[int] = ends
        # Making a batch reads its rows several times; they are kept only until the batch is made.
        self._in_use: WeakValueDictionary[int, StoredSample] = WeakValueDictionary()
        self._parts = [
            TokenPart(folder, index, end - start, metadata)
            for index, (start, end) in enumerate(pairwise([0, *self._ends]))
        ]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, row: int) -> StoredSample:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a token store with {len(self)} rows")
        sample = self._in_use.get(row)
        if sample is None:
            number = bisect_right(self._ends, row)
            sample = self._in_use[row] = self._parts[number].sample(
                row - (self._ends[number - 1] if number else 0)
            )
        return sample


def _part(number: int) -> str:
    return f"part-{number:05d}"


def finish_store(steps: Steps, part_ends: Sequence[int]) -> None:
    """Marks a store as complete, once all parts are written; ``part_ends`` are the rows where each ends."""
    steps.write_manifest({"made_of": steps.provenance, "part_ends": list(part_ends)})


def token_dtype(largest_id: int) -> np.dtype[Any]:
    """16 bits where every token id fits, else 32."""
    return np.dtype("<u2" if largest_id < 2**16 else "<u4")


def _are_ends(value: Any) -> bool:
    """Whether these can be the rows where parts end: increasing integers, each part with at least one row."""
    is_list = isinstance(value, list) and bool(value) and all(type(end) is int for end in value)
    return is_list and all(end > before for before, end in pairwise([0, *value]))


def _check(record: bytes, *arrays: np.ndarray) -> int:
    """CRC-32 of a record, its last field left out, and of what it points to."""
    value = zlib.crc32(record[:-_CHECK_BYTES])
    for content in arrays:
        value = zlib.crc32(content.data, value)
    return value
