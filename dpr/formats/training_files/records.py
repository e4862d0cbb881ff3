"""Rows of files whose records have named fields: JSON arrays and lines, Parquet, Arrow, and folders of
these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dpr.core.records import TrainingSample
from dpr.formats.json_records import JsonRecord, iter_json_records
from dpr.formats.training_files.arrow_rows import arrow_rows, is_arrow
from dpr.formats.training_files.rows import KnownKeys, ReadOptions, SourceRow, parsed_row

Parse = Callable[[dict[str, Any]], TrainingSample]


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


def record_rows(path: Path, parse: Parse, options: ReadOptions, known: KnownKeys) -> Iterator[SourceRow]:
    """One row per record; ``known`` are the keys that ``parse`` reads. Raises what ``source_records`` does."""

    def parse_record(record: JsonRecord) -> TrainingSample:
        if record.error is not None:
            raise record.error
        options.unread.look(record.value, known, file=path, line=record.line)
        return parse(record.value)

    for file, record in source_records(path, options.split):
        yield parsed_row(file, record.line, parse_record, record)
