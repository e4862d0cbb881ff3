"""Training files of Tevatron and FlagEmbedding."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpr.core.records import TrainingSample
from dpr.formats.text_output import Note, write_json_lines
from dpr.formats.training_files.rows import content_id


def _tevatron_record(number: int, sample: TrainingSample) -> dict[str, Any]:
    record: dict[str, Any] = {"query_id": str(number), "query": sample.question}
    if sample.answers:
        record["answers"] = list(sample.answers)
    negatives = sample.hard_negatives + sample.other_negatives
    for key, listed in (("positive_passages", sample.positives), ("negative_passages", negatives)):
        record[key] = [{"docid": content_id(one), "title": one.title, "text": one.text} for one in listed]
        for passage, written in zip(listed, record[key], strict=True):
            if passage.teacher_score is not None:
                written["score"] = passage.teacher_score
    return record


def _flag_embedding_record(sample: TrainingSample) -> dict[str, Any]:
    """Returns a record whose texts join title and text by a space; ids and answers have no place in this
    format."""
    record: dict[str, Any] = {"query": sample.question}
    negatives = sample.hard_negatives + sample.other_negatives
    has_scores = any(passage.teacher_score is not None for passage in sample.positives + negatives)
    for key, listed in (("pos", sample.positives), ("neg", negatives)):
        record[key] = [f"{one.title} {one.text}" if one.title else one.text for one in listed]
        if has_scores:
            record[f"{key}_scores"] = [passage.teacher_score for passage in listed]
    return record


def write_tevatron(path: Path, samples: Iterable[TrainingSample], note: Note = None) -> int:
    """Writes version 1. Both kinds of negatives become ``negative_passages``; passages without id get one
    made from their content."""
    records = (_tevatron_record(number, sample) for number, sample in enumerate(samples))
    return write_json_lines(path, records, note)


def write_flag_embedding(path: Path, samples: Iterable[TrainingSample], note: Note = None) -> int:
    """Writes plain texts. Both kinds of negatives become ``neg``."""
    return write_json_lines(path, map(_flag_embedding_record, samples), note)
