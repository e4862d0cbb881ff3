"""Rows in a memory-mapped Arrow stream of record batches (also readable with
``datasets.Dataset.from_file``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

# Small enough that a reader of one row touches little, large enough that batches stay few.
BATCH_CHARACTERS = 4 * 2**20
BATCH_ROWS = 10_000


def write_batches(
    file: Path, schema: pa.Schema, rows: Iterable[Sequence[Any]], size_of: Callable[[Any], int]
) -> None:
    """Writes rows, each a value per column; ``size_of`` gives the characters of one. One batch is held in
    memory."""
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:

        def write() -> None:
            columns = [
                pa.array(values, type=field.type)
                for values, field in zip(zip(*batch, strict=True), schema, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

        batch: list[Sequence[Any]] = []
        characters = 0
        for row in rows:
            batch.append(row)
            characters += size_of(row)
            if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_ROWS:
                write()
                batch, characters = [], 0
        if batch:
            write()


class MappedBatches:
    """The batches of a file that ``write_batches`` wrote. Nothing is copied before it is asked for."""

    def __init__(self, file: Path) -> None:
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
            self.batches = list(stream)
        self._ends = np.cumsum([batch.num_rows for batch in self.batches], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def block_ends(self) -> list[int]:
        """Row numbers where the batches end (some MB of text each); the last is the number of rows."""
        return [int(end) for end in self._ends]

    def find(self, row: int) -> tuple[pa.RecordBatch, int]:
        """The batch that holds a row, and the row's place in it."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        number = int(np.searchsorted(self._ends, row, side="right"))
        return self.batches[number], int(row - (self._ends[number - 1] if number else 0))
