"""Training samples in a memory-mapped Arrow file.

rows.arrow       one row per sample, as an Arrow stream of record batches
duplicates.npy   (d, 2) int64: row and first row of the same question, for all rows whose question occurs more
than once
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpr.core.errors import InputError
from dpr.core.records import Passage, TrainingSample, text_hash
from dpr.formats.arrow_files import MappedBatches, write_batches

_ROWS = "rows.arrow"
_DUPLICATES = "duplicates.npy"

_PASSAGE = {
    "text": pa.string(),
    "title": pa.string(),
    "id": pa.string(),
    "has_score": pa.bool_(),
    "teacher_score": pa.float64(),
}
_PASSAGES = pa.list_(pa.struct(_PASSAGE))
_LISTS = ("positives", "hard_negatives", "other_negatives")
_SCHEMA = pa.schema(
    {"question": pa.string(), "answers": pa.list_(pa.string()), **dict.fromkeys(_LISTS, _PASSAGES)}
)


def write_rows(folder: Path, samples: Iterable[TrainingSample]) -> None:
    """Writes samples in order into a folder. Memory: one batch, and 8 bytes per sample."""
    hashes = array("Q")

    def rows() -> Iterator[list[Any]]:
        for sample in samples:
            hashes.append(text_hash(sample.question))
            passages = (
                [(p.text, p.title, p.id, p.has_score, p.teacher_score) for p in getattr(sample, name)]
                for name in _LISTS
            )
            yield [sample.question, sample.answers, *passages]

    def characters(row: list[Any]) -> int:
        return len(row[0]) + sum(
            len(passage[0]) + len(passage[1]) for passages in row[2:] for passage in passages
        )

    write_batches(folder / _ROWS, _SCHEMA, rows(), characters)
    np.save(folder / _DUPLICATES, _find_duplicates(folder, np.frombuffer(hashes, dtype=np.uint64)))


def _find_duplicates(folder: Path, hashes: np.ndarray) -> np.ndarray:
    """Rows of equal hash, confirmed by comparing the questions themselves."""
    _, group, count = np.unique(hashes, return_inverse=True, return_counts=True)
    suspects = np.flatnonzero(count[group] > 1).tolist()
    store = RowStore(folder) if suspects else None
    first: dict[str, int] = {}
    pairs = [(row, first.setdefault(store.question(row), row)) for row in suspects] if store else []
    repeated = {leader for row, leader in pairs if row != leader}
    return np.array([pair for pair in pairs if pair[1] in repeated], dtype=np.int64).reshape(-1, 2)


class RowStore(MappedBatches):
    """Reads rows of a folder that ``write_rows`` wrote.

    Raises:
        InputError: the folder's files are damaged.
    """

    def __init__(self, folder: Path) -> None:
        try:
            super().__init__(folder / _ROWS)
            has_duplicates = (folder / _DUPLICATES).exists()  # not yet while the writer looks for them
            pairs = (
                np.load(folder / _DUPLICATES, allow_pickle=False)
                if has_duplicates
                else np.empty((0, 2), dtype=np.int64)
            )
        except Exception as error:  # numpy's parser of a damaged header raises whatever comes up
            raise InputError(
                f"the parsed training set is damaged ({error})", file=folder, hint="remove this folder"
            ) from None
        self._duplicate_rows, self._leaders = np.ascontiguousarray(pairs.T)
        order = np.argsort(self._leaders, kind="stable")
        self._leaders_in_order = self._leaders[order]
        self._rows_by_leader = self._duplicate_rows[order]

    def __getitem__(self, row: int) -> TrainingSample:
        batch, index = self.find(row)
        positives, hard_negatives, other_negatives = (_passages(batch, name, index) for name in _LISTS)
        answers = tuple(batch.column("answers")[index].as_py())
        return TrainingSample(
            batch.column("question")[index].as_py(), positives, hard_negatives, other_negatives, answers
        )

    def question(self, row: int) -> str:
        batch, index = self.find(row)
        return str(batch.column("question")[index].as_py())

    def known_positives(self, row: int) -> tuple[Passage, ...]:
        """All passages known to answer the question of ``row``: its own, then those of rows with exactly the
        same question."""
        places = (self.find(same) for same in (row, *self.rows_with_same_question(row)))
        return tuple(
            dict.fromkeys(
                passage for batch, index in places for passage in _passages(batch, "positives", index)
            )
        )

    def rows_with_same_question(self, row: int) -> list[int]:
        """Other rows whose question is exactly that of ``row``, in order."""
        index = int(np.searchsorted(self._duplicate_rows, row))
        if index == len(self._duplicate_rows) or self._duplicate_rows[index] != row:
            return []
        leader = self._leaders[index]
        low, high = np.searchsorted(self._leaders_in_order, [leader, leader + 1])
        return [int(member) for member in self._rows_by_leader[low:high] if member != row]


def _passages(batch: pa.RecordBatch, column: str, index: int) -> tuple[Passage, ...]:
    listed = batch.column(column)
    start = listed.offsets[index].as_py()
    end = listed.offsets[index + 1].as_py()
    fields = (listed.values.field(name).slice(start, end - start).to_pylist() for name in _PASSAGE)
    return tuple(Passage(*values) for values in zip(*fields, strict=True))
