"""DPR's own training files, JSON array or JSON lines: the native format. The record is in ``formats/training_records``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from dpr.core.records import TrainingSample
from dpr.formats.corpora import write_text
from dpr.formats.json_records import indented_record
from dpr.formats.training_files.rows import Note, ReadOptions, SourceRow, json_rows
from dpr.formats.training_files.unread_keys import KnownKeys
from dpr.formats.training_records import sample_from_json, sample_to_json

_KEYS = KnownKeys(("question", "answers", "positive_ctxs", "hard_negative_ctxs", "negative_ctxs"))


def read(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """One row per record."""
    return json_rows(path, sample_from_json, options, _KEYS)


def write_training_set(path: str | Path, samples: Iterable[TrainingSample], note: Note = None) -> int:
    """Writes a DPR training file, JSON lines for names in .jsonl, else a JSON array; ``.gz`` is packed. Returns how many."""
    file = Path(path)
    is_lines = file.name.removesuffix(".gz").endswith(".jsonl")
    count = 0
    with write_text(file, note=note) as out:
        if is_lines:
            for count, sample in enumerate(samples, 1):  # noqa: B007
                out.write(json.dumps(sample_to_json(sample), ensure_ascii=False) + "\n")
            return count
        for count, sample in enumerate(samples, 1):
            out.write(("[" if count == 1 else ",") + indented_record(sample_to_json(sample)))
        out.write("\n]\n" if count else "[]\n")
    return count


def join_record_files(parts: Iterable[Path], out: Path) -> None:
    """Joins files of JSON lines into one, whole or not at all, with a checksum beside it; ``.gz`` is packed."""
    with write_text(out, note={}) as joined:
        for part in parts:
            joined.write(part.read_text(encoding="utf-8"))
