"""A training set in the cache, memory-mapped.

rows.arrow       one row per sample, as an Arrow stream of record batches
duplicates.npy   (d, 2) int64: row and first row of the same question, for all rows whose question occurs more
                 than once; questions are compared exactly (``composed``)
questions.npy    (n,) uint64: a hash of each row's question without differences of case and spacing
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpr.core.records import Passage, TrainingSample, composed, plain, text_hash
from dpr.formats.arrays import map_array
from dpr.formats.arrow_files import MappedBatches, write_batches
from dpr.formats.id_hashes import rows_of_repeated
from dpr.formats.training_files.rows import Counts
from dpr.storage.durable import read_manifest

_ROWS = "rows.arrow"
_DUPLICATES = "duplicates.npy"
_QUESTIONS = "questions.npy"
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


class TrainingSet(MappedBatches):
    """A training set on disk, by row number. Pickles as a path."""

    def __init__(self, folder: Path, name: str) -> None:
        metadata = read_manifest(folder)["metadata"]
        super().__init__(folder / _ROWS)
        self.name = name
        self.fingerprint: str = metadata["fingerprint"]
        """Hash that changes with the content of the files, not with their names or times."""
        self.counts = Counts(**metadata["counts"])
        self.unread: dict[str, str] = metadata["unread"]
        """Warnings about keys that are not read, by key."""
        self._folder = folder
        self._duplicate_rows, self._leaders = np.ascontiguousarray(np.load(folder / _DUPLICATES).T)
        self.question_hashes = map_array(folder / _QUESTIONS)
        """Hashes that are equal for questions that are equal except for case and spacing."""
        order = np.argsort(self._leaders, kind="stable")
        self._leaders_in_order = self._leaders[order]
        self._rows_by_leader = self._duplicate_rows[order]

    def __reduce__(self) -> tuple[object, ...]:
        return (TrainingSet, (self._folder, self.name))

    def __getitem__(self, row: int) -> TrainingSample:
        batch, index = self.find(row)
        positives, hard_negatives, other_negatives = (_passages(batch, name, index) for name in _LISTS)
        answers = tuple(batch.column("answers")[index].as_py())
        return TrainingSample(
            batch.column("question")[index].as_py(), positives, hard_negatives, other_negatives, answers
        )

    def known_positives(self, row: int) -> tuple[Passage, ...]:
        """Returns all passages known to answer the question of ``row``: its own, then those of rows with
        exactly the same question."""
        known: dict[Passage, None] = {}
        for same in (row, *self.rows_with_same_question(row)):
            batch, index = self.find(same)
            known |= dict.fromkeys(_passages(batch, "positives", index))
        return tuple(known)

    def rows_with_same_question(self, row: int) -> list[int]:
        """Returns other rows whose question is exactly that of ``row``, in order."""
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


def write_rows(folder: Path, samples: Iterable[TrainingSample]) -> None:
    """Writes samples in order, and the rows that share a question, into a folder. Takes the memory of one
    batch, and 8 bytes per sample."""
    hashes = array("Q")

    def rows() -> Iterator[list[Any]]:
        for sample in samples:
            hashes.append(text_hash(plain(sample.question)))
            passages = (
                [(p.text, p.title, p.id, p.has_score, p.teacher_score) for p in getattr(sample, name)]
                for name in _LISTS
            )
            yield [sample.question, sample.answers, *passages]

    def characters(row: list[Any]) -> int:
        return len(row[0]) + sum(len(text) + len(title) for listed in row[2:] for text, title, *_ in listed)

    write_batches(folder / _ROWS, _SCHEMA, rows(), characters)
    hashed = np.frombuffer(hashes, dtype=np.uint64)
    np.save(folder / _QUESTIONS, hashed)
    # Rows of equal hash, confirmed by comparing the questions themselves.
    stored = MappedBatches(folder / _ROWS)
    first: dict[str, int] = {}
    pairs = []
    for row in rows_of_repeated(hashed):
        batch, index = stored.find(row)
        pairs.append((row, first.setdefault(composed(batch.column("question")[index].as_py()), row)))
    repeated = {leader for row, leader in pairs if row != leader}
    duplicates = [pair for pair in pairs if pair[1] in repeated]
    np.save(folder / _DUPLICATES, np.array(duplicates, dtype=np.int64).reshape(-1, 2))
