"""Records with named fields, batch by batch: of Parquet and Arrow files and Hugging Face ``datasets`` folders, and
of JSON files by the same functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpr.core.errors import InputError
from dpr.core.records import TrainingSample
from dpr.formats.column_names import require_distinct
from dpr.formats.json_records import JsonRecord, iter_json_records
from dpr.formats.training_files.rows import KnownKeys, ReadOptions, SourceRow, chosen_split, parsed_row
from dpr.storage.durable import read_json
from dpr.storage.untrusted import inside

_BATCH_ROWS = 256
_SPLIT_FILE = "dataset_dict.json"


def is_arrow(path: Path) -> bool:
    """Whether this is a Parquet file, an Arrow file, or a folder of such."""
    if path.is_dir():
        return (
            (path / _SPLIT_FILE).is_file() or (path / "state.json").is_file() or any(path.rglob("*.parquet"))
        )
    return _magic(path).startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"))


def arrow_rows(path: Path, *, split: str = "") -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """File, row number (from 1) and values of every row.

    A folder is what ``save_to_disk`` wrote, or holds Parquet files, whose split is the beginning of the name
    (``train-00000-of-00001``) or the folder.

    Raises:
        InputError: a damaged file; two columns of one name; the split does not exist.
        ConfigError: see ``chosen_split``.
    """
    for file in arrow_files(path, split):
        with _reading(file):
            number = 0
            for batch in _batches(file):
                names = batch.schema.names
                require_distinct(names, names, file=file, line=1)
                for value in batch.to_pylist():
                    number += 1
                    yield file, number, value


def column_names(path: Path) -> list[str]:
    """Column names of a file, or of the first one in a folder, whatever its split."""
    files = [path]
    if path.is_dir():
        files = sorted(found for ending in ("arrow", "parquet") for found in path.rglob(f"*.{ending}"))
    for file in files[:1]:
        with _reading(file):
            if _magic(file).startswith(b"PAR1"):
                return list(pq.read_schema(file).names)
            return next(iter(_batches(file)), pa.record_batch({})).schema.names
    return []


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read as Arrow or Parquet ({str(error).splitlines()[0][:200]})", file=file
        ) from None


def arrow_files(path: Path, split: str = "") -> list[Path]:
    """The files of one split, in the order of their names."""
    if not path.is_dir():
        return [path]
    if (path / _SPLIT_FILE).is_file():
        return arrow_files(path / chosen_split(_plain_names(path / _SPLIT_FILE, "splits"), split, path))
    if (path / "state.json").is_file():
        return [path / name for name in _plain_names(path / "state.json", "_data_files")]
    by_split: dict[str, list[Path]] = {}
    for file in sorted(path.rglob("*.parquet")):
        parent = file.relative_to(path).parent.name
        name = file.name.partition("-")[0].removesuffix(".parquet")
        by_split.setdefault(parent if parent not in ("", "data") and name.isdigit() else name, []).append(
            file
        )
    if not by_split:
        raise InputError("no Parquet or Arrow files in this folder", file=path)
    return by_split[chosen_split(list(by_split), split, path)]


def _plain_names(file: Path, key: str) -> list[str]:
    """The file or folder names that a description of a folder lists, all inside it."""
    value = read_json(file)
    listed = value.get(key) if isinstance(value, dict) else None
    names = (
        [entry.get("filename") if isinstance(entry, dict) else entry for entry in listed]
        if isinstance(listed, list)
        else []
    )
    if not names:
        raise InputError(f"no list {key!r} of names in this folder", file=file)
    return [
        inside(file.parent, name, stated_in=file.name).relative_to(file.parent).as_posix() for name in names
    ]


def _batches(file: Path) -> Iterator[pa.RecordBatch]:
    if _magic(file).startswith(b"PAR1"):
        with pq.ParquetFile(file) as opened:
            yield from opened.iter_batches(batch_size=_BATCH_ROWS)
        return
    with pa.memory_map(os.fspath(file)) as source:
        is_file = _magic(file).startswith(b"ARROW1")
        opened = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
        for batch in (
            (opened.get_batch(index) for index in range(opened.num_record_batches)) if is_file else opened
        ):
            batch.validate(full=True)  # offsets of a damaged file would lead out of its memory
            yield from (batch.slice(start, _BATCH_ROWS) for start in range(0, batch.num_rows, _BATCH_ROWS))


def _magic(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(8)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path) from None


def source_records(path: Path, split: str = "") -> Iterator[tuple[Path, JsonRecord]]:
    """Every record with its file; ``split`` is the part of a folder.

    Raises:
        InputError: what cannot be skipped (see ``iter_json_records``, ``arrow_rows``).
    """
    if is_arrow(path):
        for file, number, value in arrow_rows(path, split=split):
            yield file, JsonRecord(number, value)
    else:
        for record in iter_json_records(path):
            yield path, record


def record_rows(
    path: Path, parse: Callable[[dict[str, Any]], TrainingSample], options: ReadOptions, known: KnownKeys
) -> Iterator[SourceRow]:
    """One row per record; ``known`` are the keys that ``parse`` reads. Raises what ``source_records`` does."""

    def parse_record(record: JsonRecord) -> TrainingSample:
        if record.error is not None:
            raise record.error
        options.unread.look(record.value, known, file=path, line=record.line)
        return parse(record.value)

    for file, record in source_records(path, options.split):
        yield parsed_row(file, record.line, parse_record, record)
