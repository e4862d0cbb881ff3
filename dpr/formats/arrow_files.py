"""Arrow and Parquet files. Rows of other tools' files and of Hugging Face ``datasets`` folders are read batch
by batch; own rows are kept in a memory-mapped stream of record batches, also readable with
``datasets.Dataset.from_file``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import counted

# Small enough that a reader of one row touches little, large enough that batches stay few.
BATCH_CHARACTERS = 4 * 2**20
BATCH_ROWS = 10_000
_BATCH_ROWS = 256


def write_batches(
    file: Path, schema: pa.Schema, rows: Iterable[Sequence[Any]], size_of: Callable[[Any], int]
) -> None:
    """Writes rows, each with a value per column. ``size_of`` gives the number of characters of a row. One
    batch is held in memory."""
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:

        def write() -> None:
            columns = map(pa.array, zip(*batch, strict=True), schema.types)
            writer.write_batch(pa.RecordBatch.from_arrays(list(columns), schema=schema))

        batch: list[Sequence[Any]] = []
        characters = 0
        for row in rows:
            batch.append(row)
            characters += size_of(row)
            if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_ROWS:
                write()
                batch = []
                characters = 0
        if batch:
            write()


class MappedBatches:
    """Batches of a file written by ``write_batches``. Nothing is copied before it is requested."""

    def __init__(self, file: Path) -> None:
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
            self.batches = list(stream)
        self._ends = np.cumsum([batch.num_rows for batch in self.batches], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def block_ends(self) -> list[int]:
        """Returns row numbers where the batches end (some MB of text each); the last is the number of
        rows."""
        ends: list[int] = self._ends.tolist()
        return ends

    def find(self, row: int) -> tuple[pa.RecordBatch, int]:
        """Returns the batch that holds a row, and the row's place in it."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        number = int(np.searchsorted(self._ends, row, side="right"))
        return self.batches[number], int(row - (self._ends[number - 1] if number else 0))


def is_arrow(path: Path) -> bool:
    """True for a Parquet file, an Arrow file, or a folder of such files."""
    if path.is_dir():
        return bool(_files_inside(path))
    return _magic(path).startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"))


def arrow_rows(path: Path, *, split: str = "") -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """Yields file, row number (from 1) and values of every row.

    A folder is the output of ``save_to_disk``, or holds Parquet files. The split of a file is the beginning
    of its name (``train-00000-of-00001``) or its folder.

    Raises:
        InputError: a damaged file; the split does not exist.
        ConfigError: see ``chosen_split``.
    """
    for file in arrow_files(path, split):
        with _reading(file):
            number = 0
            for batch in _batches(file):
                for value in batch.to_pylist():
                    number += 1
                    yield file, number, value


def column_names(path: Path) -> list[str]:
    """Returns the column names of a file, or of the first file in a folder, whatever its split."""
    file = _files_inside(path)[0] if path.is_dir() else path
    with _reading(file):
        if _magic(file).startswith(b"PAR1"):
            return list(pq.read_schema(file).names)
        return next(iter(_batches(file)), pa.record_batch({})).schema.names


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read as Arrow or Parquet ({str(error).splitlines()[0][:200]})", file=file
        ) from None


def _files_inside(folder: Path) -> list[Path]:
    """Returns the data files of a folder, without those that ``datasets`` keeps for its own use."""
    return sorted([*folder.rglob("*.parquet"), *folder.rglob("data-*.arrow")])


def arrow_files(path: Path, split: str = "") -> list[Path]:
    """Returns the files of one split, sorted by name."""
    if not path.is_dir():
        return [path]
    by_split: dict[str, list[Path]] = {}
    for file in _files_inside(path):
        folder = file.relative_to(path).parent.name
        name = file.name.partition(".")[0].partition("-")[0]
        is_numbered = bool(folder) and (name.isdigit() or name == "data")
        by_split.setdefault(folder if is_numbered else name, []).append(file)
    if not by_split:
        raise InputError("no Parquet or Arrow files in this folder", file=path)
    return by_split[chosen_split(list(by_split), split, path)]


def _batches(file: Path) -> Iterator[pa.RecordBatch]:
    what = f"reading {file.name}"
    if _magic(file).startswith(b"PAR1"):
        with pq.ParquetFile(file) as opened:
            batches = opened.iter_batches(batch_size=_BATCH_ROWS)
            yield from counted(batches, what, opened.metadata.num_rows, unit="rows", size_of=len)
        return
    with pa.memory_map(os.fspath(file)) as source:
        is_file = _magic(file).startswith(b"ARROW1")
        opened = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
        batches = (
            (opened.get_batch(index) for index in range(opened.num_record_batches)) if is_file else opened
        )
        for batch in counted(batches, what, source.size(), unit="MB", size_of=lambda batch: batch.nbytes):
            batch.validate(full=True)  # offsets of a damaged file would lead out of its memory
            yield from (batch.slice(start, _BATCH_ROWS) for start in range(0, batch.num_rows, _BATCH_ROWS))


def _magic(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(8)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path) from None


def chosen_split(names: Sequence[str], split: str, path: Path) -> str:
    """Returns the part of a folder to read: ``split``, else train, else the only one. A test set must be
    named.

    Raises:
        InputError: the folder has no such split.
        ConfigError: several splits without ``train``, or only a test set, and none is named.
    """
    shown = ", ".join(names)[:300]
    split = split or ("train" if "train" in names else "")
    if split in names:
        return split
    if split:
        raise InputError(f"no split {split!r}", file=path, expected=f"one of {shown}")
    only = f"has the splits {shown}"
    if len(names) == 1:
        if names[0] != "test":
            return names[0]
        only = "has only the split test, which is reserved for evaluation"
    raise ConfigError(
        f"{path} {only}; choose with split=NAME (dpr prepare FILE split=NAME out=train.jsonl), or name the file of a split"
    )
