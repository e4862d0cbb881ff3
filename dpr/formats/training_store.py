"""Training samples in a memory-mapped Arrow file (also readable with ``datasets.Dataset.from_file``).

rows.arrow       one row per sample, as an Arrow stream of record batches
duplicates.npy   (d, 2) int64: row and first row of the same question, for all rows whose question occurs more than once
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

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
_LISTS = ("positives", "hard_negatives", "other_negatives")
_SCHEMA = pa.schema({"question": pa.string(), "answers": pa.list_(pa.string()), **dict.fromkeys(_LISTS, _PASSAGES)})


def write_rows(folder: Path, samples: Iterable[TrainingSample]) -> None:
    """Writes samples in order into a folder. Memory: one batch, and 8 bytes per sample."""
    hashes = array("Q")
    with pa.OSFile(str(folder / _ROWS), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as writer:
        batch: list[TrainingSample] = []
        characters = 0
        for sample in samples:
            batch.append(sample)
            hashes.append(_hash(sample.question))
            characters += len(sample.question)
            characters += sum(len(passage.text) + len(passage.title) for name in _LISTS for passage in getattr(sample, name))
            if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_ROWS:
                writer.write_batch(_record_batch(batch))
                batch, characters = [], 0
        if batch:
            writer.write_batch(_record_batch(batch))
    np.save(folder / _DUPLICATES, _find_duplicates(folder, np.frombuffer(hashes, dtype=np.uint64)))


def _record_batch(samples: Sequence[TrainingSample]) -> pa.RecordBatch:
    columns = [[sample.question for sample in samples], [sample.answers for sample in samples]]
    for name in _LISTS:
        columns.append([[(p.text, p.title, p.id, p.has_score) for p in getattr(sample, name)] for sample in samples])
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _find_duplicates(folder: Path, hashes: np.ndarray) -> np.ndarray:
    """Rows of equal hash, confirmed by comparing the questions themselves."""
    _, group, count = np.unique(hashes, return_inverse=True, return_counts=True)
    suspects = np.flatnonzero(count[group] > 1).tolist()
    store = RowStore(folder) if suspects else None
    first: dict[str, int] = {}
    pairs = [(row, first.setdefault(store.question(row), row)) for row in suspects] if store else []
    repeated = {leader for row, leader in pairs if row != leader}
    return np.array([pair for pair in pairs if pair[1] in repeated], dtype=np.int64).reshape(-1, 2)


class RowStore:
    """Reads rows of a folder that ``write_rows`` wrote. The file is mapped; nothing is copied before it is asked for.

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

    def __getitem__(self, row: int) -> TrainingSample:
        batch, place = self._find(row)
        positives, hard_negatives, other_negatives = (_passages(batch, name, place) for name in _LISTS)
        answers = tuple(batch.column("answers")[place].as_py())
        return TrainingSample(batch.column("question")[place].as_py(), positives, hard_negatives, other_negatives, answers)

    def block_ends(self) -> list[int]:
        """Row numbers where the blocks end in which rows are stored (some MB of text each); the last is the number of rows."""
        return [int(end) for end in self._ends]

    def question(self, row: int) -> str:
        batch, place = self._find(row)
        return str(batch.column("question")[place].as_py())

    def questions(self) -> Iterator[str]:
        """The questions of all rows, in order; only their column is read."""
        for batch in self._batches:
            yield from batch.column("question").to_pylist()

    def known_positives(self, row: int) -> tuple[Passage, ...]:
        """All passages known to answer the question of ``row``: its own, then those of rows with exactly the same question."""
        places = (self._find(same) for same in (row, *self.rows_with_same_question(row)))
        return tuple(dict.fromkeys(passage for batch, place in places for passage in _passages(batch, "positives", place)))

    def character_counts(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Characters of each row's question (N,); per kind of passage, characters (titles included) and number of each row's (N, 2)."""
        questions = [pc.utf8_length(batch.column("question")).to_numpy(zero_copy_only=False) for batch in self._batches]
        passages = {name: np.concatenate([_passage_characters(batch.column(name)) for batch in self._batches]) for name in _LISTS}
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
