"""DPR's training files, read and written; SQuAD's, read; Tevatron's and FlagEmbedding's, written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.paths import user_path
from dpr.core.records import Passage, TrainingSample
from dpr.formats.corpora import durable_text
from dpr.formats.json_records import indented_record, iter_member_records
from dpr.formats.training_files.rows import (
    Note,
    ReadOptions,
    SourceRow,
    content_id,
    record_rows,
)
from dpr.formats.training_records import (
    checked_answers,
    sample_from_json,
    sample_to_json,
    text_of,
    title_of,
)
from dpr.storage.untrusted import describe

_DPR_KEYS = ("question", "answers", "positive_ctxs", "hard_negative_ctxs", "negative_ctxs")


def read_dpr(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """DPR's training files."""
    return record_rows(path, sample_from_json, options, _DPR_KEYS)


def write_training_set(path: str | Path, samples: Iterable[TrainingSample], note: Note = None) -> int:
    """Writes a DPR training file: JSON lines for names in .jsonl, else a JSON array; compressed for names in
    ``.gz``. Returns how many."""
    file = user_path(path)
    if file.name.removesuffix(".gz").endswith(".jsonl"):
        return _write_lines(lambda _, sample: sample_to_json(sample), file, samples, note)
    count = 0
    with durable_text(file, note=note) as out:
        for count, sample in enumerate(samples, 1):
            out.write(("[" if count == 1 else ",") + indented_record(sample_to_json(sample)))
        out.write("\n]\n" if count else "[]\n")
    return count


def _tevatron_record(number: int, sample: TrainingSample) -> dict[str, Any]:
    record: dict[str, Any] = {"query_id": str(number), "query": sample.question}
    if sample.answers:
        record["answers"] = list(sample.answers)
    negatives = sample.hard_negatives + sample.other_negatives
    record["positive_passages"] = [_tevatron_passage(passage) for passage in sample.positives]
    record["negative_passages"] = [_tevatron_passage(passage) for passage in negatives]
    return record


def _tevatron_passage(passage: Passage) -> dict[str, Any]:
    record: dict[str, Any] = {"docid": content_id(passage), "title": passage.title, "text": passage.text}
    if passage.teacher_score is not None:
        record["score"] = passage.teacher_score
    return record


def _flag_embedding_record(_: int, sample: TrainingSample) -> dict[str, Any]:
    """Title and text are joined by a space; ids and answers have no place in this format."""
    record: dict[str, Any] = {"query": sample.question}
    lists = {"pos": sample.positives, "neg": sample.hard_negatives + sample.other_negatives}
    for key, listed in lists.items():
        record[key] = [
            f"{passage.title} {passage.text}" if passage.title else passage.text for passage in listed
        ]
    if any(passage.teacher_score is not None for listed in lists.values() for passage in listed):
        for key, listed in lists.items():
            record[f"{key}_scores"] = [passage.teacher_score for passage in listed]
    return record


def _write_lines(
    record: Callable[[int, TrainingSample], dict[str, Any]],
    path: Path,
    samples: Iterable[TrainingSample],
    note: Note = None,
) -> int:
    count = 0
    with durable_text(path, note=note) as out:
        for count, sample in enumerate(samples, 1):
            out.write(json.dumps(record(count - 1, sample), ensure_ascii=False) + "\n")
    return count


write_tevatron = partial(_write_lines, _tevatron_record)
"""Writes version 1. Both kinds of negatives become ``negative_passages``; passages without id get one made of
their content."""
write_flag_embedding = partial(_write_lines, _flag_embedding_record)
"""Writes plain texts. Both kinds of negatives become ``neg``."""


def read_squad(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """SQuAD's JSON (also SQuADShifts and others of its form): one row per question, article by article; its
    title is that of its passages.

    A question without answer in its paragraph (SQuAD 2.0) has no positive. A bad row ends its article. It is
    named by the line of the article and the place inside it, since most such files are a single line.
    """
    for index, record in enumerate(iter_member_records(path, "data")):
        try:
            if record.error is not None:
                raise record.error
            for sample in _squad_samples(record.value, f"data[{index}]"):
                yield SourceRow(path, record.line, sample)
        except ValueError as error:
            problem = (
                error
                if isinstance(error, InputError)
                else InputError(str(error), file=path, line=record.line)
            )
            yield SourceRow(path, record.line, None, problem)


def _squad_samples(article: dict[str, Any], where: str) -> Iterator[TrainingSample]:
    # File names of Wikipedia pages have underscores for spaces.
    title = title_of(article.get("title"), f"{where}.title").replace("_", " ")
    for inside, paragraph in _objects(article.get("paragraphs"), f"{where}.paragraphs"):
        passage = Passage(text_of(paragraph.get("context"), f"{inside}.context"), title)
        for place, entry in _objects(paragraph.get("qas"), f"{inside}.qas"):
            question = text_of(entry.get("question"), f"{place}.question")
            listed = _objects(entry.get("answers") or [], f"{place}.answers")
            answers = checked_answers(
                list(dict.fromkeys(str(answer.get("text", "")) for _, answer in listed))
            )
            if entry.get("is_impossible") is True:
                yield TrainingSample(question, ())
            else:
                yield TrainingSample(question, (passage,), answers=tuple(filter(None, answers)))


def _objects(value: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a list, each with its place."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{where} is {describe(value)}, expected a list of objects")
    return [(f"{where}[{number}]", item) for number, item in enumerate(value)]
