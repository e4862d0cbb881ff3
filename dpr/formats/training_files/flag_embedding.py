"""FlagEmbedding's JSON lines: ``query``, ``pos`` and ``neg``, all plain texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dpr.core.records import Passage, TrainingSample
from dpr.formats.corpora import write_text
from dpr.formats.training_files.rows import Note, ReadOptions, SourceRow, json_rows
from dpr.formats.training_files.unread_keys import KnownKeys
from dpr.formats.training_files.values import passages_of, text_of


def read(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """One row per record. Teacher scores are not read, which is told; prompt and type are not either."""
    return json_rows(path, _sample, options, KnownKeys(("query", "pos", "neg")))


def write(path: Path, samples: Iterable[TrainingSample], note: Note = None) -> int:
    """Writes title and text joined by a space; ids and answers have no place there. Both kinds of negatives become ``neg``."""
    count = 0
    with write_text(path, note=note) as out:
        for sample in samples:
            record = {
                "query": sample.question,
                "pos": [_text(passage) for passage in sample.positives],
                "neg": [_text(passage) for passage in sample.hard_negatives + sample.other_negatives],
            }
            out.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count


def _sample(record: dict[str, Any]) -> TrainingSample:
    if record.get("pos") is None:
        raise ValueError("no pos, expected a list of texts")
    return TrainingSample(
        text_of(record.get("query"), "query"), passages_of(record["pos"], "pos"), hard_negatives=passages_of(record.get("neg"), "neg")
    )


def _text(passage: Passage) -> str:
    return f"{passage.title} {passage.text}" if passage.title else passage.text
