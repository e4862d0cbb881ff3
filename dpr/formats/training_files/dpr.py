"""DPR's training files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dpr.core.paths import user_path
from dpr.core.records import Passage, TrainingSample
from dpr.formats.passage_records import passage_from_json, passage_to_json
from dpr.formats.record_fields import checked_answers, keys_of, text_of
from dpr.formats.record_files import indented_record
from dpr.formats.text_output import Note, durable_text, write_json_lines
from dpr.formats.training_files.rows import ReadOptions, SourceRow, record_rows
from dpr.storage.untrusted import describe

_DPR_KEYS = ("question", "answers", "positive_ctxs", "hard_negative_ctxs", "negative_ctxs")


def sample_from_json(record: dict[str, Any]) -> TrainingSample:
    """Returns the sample in a record. Other keys are ignored. An empty ``positive_ctxs`` is accepted; the
    caller drops such rows, as DPR does.

    Raises:
        ValueError: states what was found, what is expected, and the place inside the record.
    """
    for key, expected in (("question", "a string"), ("positive_ctxs", "a list of passages")):
        if record.get(key) is None:
            found = "null" if key in record else "missing"
            raise ValueError(f"{key} is {found}, expected {expected}; the keys are {keys_of(record)}")
    return TrainingSample(
        question=text_of(record["question"], "question"),
        positives=_passages(record, "positive_ctxs"),
        hard_negatives=_passages(record, "hard_negative_ctxs"),
        other_negatives=_passages(record, "negative_ctxs"),
        answers=checked_answers(record.get("answers")),
    )


def sample_to_json(sample: TrainingSample) -> dict[str, Any]:
    """Returns the record of a sample. DPR's ``score`` is written as null, since only its presence is
    known."""
    return {
        "question": sample.question,
        "answers": list(sample.answers),
        "positive_ctxs": [passage_to_json(passage) for passage in sample.positives],
        "negative_ctxs": [passage_to_json(passage) for passage in sample.other_negatives],
        "hard_negative_ctxs": [passage_to_json(passage) for passage in sample.hard_negatives],
    }


def _passages(record: dict[str, Any], key: str) -> tuple[Passage, ...]:
    listed = record.get(key)
    if listed is None:
        return ()
    if not isinstance(listed, list):
        raise ValueError(f"{key} is {describe(listed)}, expected a list of passages")
    return tuple(passage_from_json(item, f"{key}[{index}]") for index, item in enumerate(listed))


def read_dpr(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Yields the rows of DPR's training files."""
    return record_rows(path, sample_from_json, options, _DPR_KEYS)


def write_training_set(path: str | Path, samples: Iterable[TrainingSample], note: Note = None) -> int:
    """Writes a DPR training file: JSON lines for names in .jsonl, else a JSON array; compressed for names in
    ``.gz``. Returns the number of samples."""
    file = user_path(path)
    if file.name.removesuffix(".gz").endswith(".jsonl"):
        return write_json_lines(file, map(sample_to_json, samples), note)
    count = 0
    with durable_text(file, note=note) as out:
        for count, sample in enumerate(samples, 1):
            out.write(("[" if count == 1 else ",") + indented_record(sample_to_json(sample)))
        out.write("\n]\n" if count else "[]\n")
    return count
