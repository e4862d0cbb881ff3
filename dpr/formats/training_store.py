"""Training samples in an Arrow file that is mapped, not loaded (readable with ``datasets.Dataset.from_file`` too).

rows.arrow       one row per sample, as an Arrow stream of record batches
duplicates.npy   (d, 2) int64: row and first row of the same question, for all rows whose question occurs more than once
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpr.core.errors import InputError
from dpr.core.records import Passage, TrainingSample

_ROWS = "rows.arrow"
_DUPLICATES = "duplicates.npy"
_BATCH_CHARACTERS = 4 * 2**20  # small enough that a reader of one row touches little, large enough that batches stay few
_BATCH_ROWS = 10_000

_PASSAGES = pa.list_(pa.struct({"text": pa.string(), "title": pa.string(), "id": pa.string(), "has_score": pa.bool_()}))
_SCHEMA = pa.schema(
    {
        "question": pa.string(),
        "answers": pa.list_(pa.string()),
        "positives": _PASSAGES,
        "hard_negatives": _PASSAGES,
        "other_negatives": _PASSAGES,
    }
)


class RowStoreWriter:
    """Writes samples in order into a folder. Memory: one batch, and 8 bytes per sample."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
        self._characters = 0
        self._hashes = array("Q")

    def __enter__(self) -> RowStoreWriter:
        self._sink = pa.OSFile(str(self._folder / _ROWS), "wb")
        self._writer = pa.ipc.new_stream(self._sink, _SCHEMA)
        return self

    def add(self, sample: TrainingSample) -> None:
        """Appends a sample; it becomes the next row."""
        self._columns["question"].append(sample.question)
        self._columns["answers"].append(sample.answers)
        for name in ("positives", "hard_negatives", "other_negatives"):
            passages: tuple[Passage, ...] = getattr(sample, name)
            self._columns[name].append([(p.text, p.title, p.id, p.has_score) for p in passages])
            self._characters += sum(len(p.text) + len(p.title) for p in passages)
        self._characters += len(sample.question)
        self._hashes.append(_hash(sample.question))
        if self._characters >= _BATCH_CHARACTERS or len(self._columns["question"]) >= _BATCH_ROWS:
            self._flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        self._writer.close()
        self._sink.close()
        if kind is None:
            np.save(self._folder / _DUPLICATES, self._find_duplicates())

    def _flush(self) -> None:
        if self._columns["question"]:
            arrays = [pa.array(self._columns[field.name], type=field.type) for field in _SCHEMA]
            self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
        self._columns = {name: [] for name in _SCHEMA.names}
        self._characters = 0

    def _find_duplicates(self) -> np.ndarray:
        """Rows of equal hash, confirmed by comparing the questions themselves."""
        hashes = np.frombuffer(self._hashes, dtype=np.uint64)
        _, group, count = np.unique(hashes, return_inverse=True, return_counts=True)
        suspects = np.flatnonzero(count[group] > 1)
        if not len(suspects):
            return np.empty((0, 2), dtype=np.int64)
        store = RowStore(self._folder)
        first: dict[str, int] = {}
        pairs = [(int(row), first.setdefault(store.question(int(row)), int(row))) for row in suspects]
        repeated = {leader for row, leader in pairs if row != leader}
        return np.array([pair for pair in pairs if pair[1] in repeated], dtype=np.int64).reshape(-1, 2)


class RowStore:
    """Reads rows of a folder that RowStoreWriter wrote. Maps the file; nothing is copied before it is asked for.

    Raises:
        InputError: the folder's files are damaged.
    """

    def __init__(self, folder: Path) -> None:
        try:
            with pa.memory_map(str(folder / _ROWS)) as source, pa.ipc.open_stream(source) as stream:
                self._batches = list(stream)
            has_duplicates = (folder / _DUPLICATES).exists()  # not yet while the writer looks for them
            pairs = np.load(folder / _DUPLICATES, allow_pickle=False) if has_duplicates else np.empty((0, 2), dtype=np.int64)
        except Exception as error:  # numpy's parser of a damaged header raises whatever comes up
            raise InputError(f"the parsed training set is damaged ({error})", file=folder, hint="remove this folder") from None
        self._ends = np.cumsum([batch.num_rows for batch in self._batches], dtype=np.int64)
        self._duplicate_rows, self._leaders = np.ascontiguousarray(pairs.T)
        order = np.argsort(self._leaders, kind="stable")
        self._leaders_in_order, self._rows_by_leader = self._leaders[order], self._duplicate_rows[order]

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def block_ends(self) -> list[int]:
        return [int(end) for end in self._ends]

    def question(self, row: int) -> str:
        batch, place = self._find(row)
        return str(batch.column("question")[place].as_py())

    def questions(self) -> Iterator[str]:
        """All of them, in order; only their column is read."""
        for batch in self._batches:
            yield from batch.column("question").to_pylist()

    def sample(self, row: int) -> TrainingSample:
        batch, place = self._find(row)
        return TrainingSample(
            question=batch.column("question")[place].as_py(),
            positives=_passages(batch, "positives", place),
            hard_negatives=_passages(batch, "hard_negatives", place),
            other_negatives=_passages(batch, "other_negatives", place),
            answers=tuple(batch.column("answers")[place].as_py()),
        )

    def positives(self, row: int) -> tuple[Passage, ...]:
        batch, place = self._find(row)
        return _passages(batch, "positives", place)

    def character_counts(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Of every row the characters of its question (N,), and of each list those of its passages (with titles) and how many (N, 2)."""
        questions = [pc.utf8_length(batch.column("question")).to_numpy(zero_copy_only=False) for batch in self._batches]
        passages = {
            column: np.concatenate([_passage_characters(batch.column(column)) for batch in self._batches])
            for column in ("positives", "hard_negatives", "other_negatives")
        }
        return np.concatenate(questions).astype(np.int64), passages

    def rows_with_same_question(self, row: int) -> list[int]:
        """Other rows whose question is exactly that of ``row``, in order."""
        place = int(np.searchsorted(self._duplicate_rows, row))
        if place == len(self._duplicate_rows) or self._duplicate_rows[place] != row:
            return []
        leader = self._leaders[place]
        low, high = np.searchsorted(self._leaders_in_order, [leader, leader + 1])
        return [int(member) for member in self._rows_by_leader[low:high] if member != row]

    def _find(self, row: int) -> tuple[pa.RecordBatch, int]:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a training set with {len(self)} rows")
        number = int(np.searchsorted(self._ends, row, side="right"))
        return self._batches[number], int(row - (self._ends[number - 1] if number else 0))


def _passage_characters(listed: pa.ListArray) -> np.ndarray:
    """Characters and number of the passages of each row, (N, 2)."""
    offsets = listed.offsets.to_numpy(zero_copy_only=False)
    lengths = sum(pc.utf8_length(listed.values.field(name)).to_numpy(zero_copy_only=False).astype(np.int64) for name in ("text", "title"))
    ends = np.concatenate([[0], np.cumsum(lengths)])[offsets]
    return np.stack([np.diff(ends), np.diff(offsets)], axis=1).astype(np.int64)


def _passages(batch: pa.RecordBatch, column: str, place: int) -> tuple[Passage, ...]:
    listed = batch.column(column)
    start, end = listed.offsets[place].as_py(), listed.offsets[place + 1].as_py()
    fields = (listed.values.field(name).slice(start, end - start).to_pylist() for name in ("text", "title", "id", "has_score"))
    return tuple(Passage(*values) for values in zip(*fields, strict=True))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
