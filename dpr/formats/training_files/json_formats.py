"""Formats of one record per question: DPR's own, Tevatron's and FlagEmbedding's, each as JSON array or lines
or in Parquet; and SQuAD's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.paths import user_path
from dpr.core.records import Passage, TrainingSample
from dpr.formats.column_names import keys_of, name_in, require_name
from dpr.formats.corpora import durable_text
from dpr.formats.json_records import indented_record, iter_member_records
from dpr.formats.training_files.lookup import Lookup, open_lookup
from dpr.formats.training_files.records import record_rows
from dpr.formats.training_files.rows import (
    KnownKeys,
    Note,
    ReadOptions,
    SourceRow,
    content_id,
    parsed_row,
    preparing,
)
from dpr.formats.training_files.values import passages_of, with_ids, with_scores
from dpr.formats.training_records import (
    checked_answers,
    sample_from_json,
    sample_to_json,
    text_of,
    title_of,
)
from dpr.storage.strict_json import describe

_DPR_KEYS = KnownKeys(("question", "answers", "positive_ctxs", "hard_negative_ctxs", "negative_ctxs"))
_LISTS = ("positive_passages", "negative_passages", "positive_document_ids", "negative_document_ids")
_TEVATRON_KEYS = KnownKeys(("query", "query_text", "query_id", "answers", *_LISTS))
_FLAG_EMBEDDING_KEYS = KnownKeys(
    (
        "query",
        "pos",
        "neg",
        "pos_scores",
        "neg_scores",
        "pos_id",
        "neg_id",
        "pos_ids",
        "neg_ids",
        "prompt",
        "type",
        "answers",
    )
)


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


def read_tevatron(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Tevatron's records: version 1 with the passages in the row, version 2 with their ids and
    ``options.corpus``. Both may be mixed."""
    corpus = open_lookup(options.corpus, options.cache_dir) if options.corpus else None
    return record_rows(path, partial(_tevatron_sample, corpus), options, _TEVATRON_KEYS)


def read_flag_embedding(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """FlagEmbedding's ``query``, ``pos`` and ``neg``, all plain texts, with their teacher's ``pos_scores``
    and ``neg_scores``.

    A row's ``prompt`` becomes the beginning of its question, as FlagEmbedding's default
    ``query_instruction_format`` has it. Rows of another ``type`` than normal are read as those are.
    """

    def parse(record: dict[str, Any]) -> TrainingSample:
        sample = _flag_embedding_sample(record)
        if kind := record.get("type") or "":
            if not isinstance(kind, str):
                raise ValueError(f"type is {describe(kind)}, expected a string")
            if kind != "normal":
                options.unread.count(
                    f"type {kind[:40]!a} is read as type normal is, as questions and passages", file=path
                )
        if prompt := record.get("prompt"):
            sample = replace(sample, question=text_of(prompt, "prompt") + sample.question)
            options.unread.count(
                "a row's prompt becomes the beginning of its question; search with the same prompt", file=path
            )
        return sample

    return record_rows(path, parse, options, _FLAG_EMBEDDING_KEYS)


def _tevatron_sample(corpus: Lookup | None, record: dict[str, Any]) -> TrainingSample:
    question = require_name(record, ("query", "query_text"), "question")
    positives = require_name(record, ("positive_document_ids", "positive_passages"), "positive passage")
    if record[positives] is None:
        raise ValueError(f"{positives} is null, expected a list")
    negatives = positives.replace("positive", "negative")
    if positives == "positive_passages":
        corpus = None
    elif corpus is None:
        raise ValueError(
            f"the row names passages by id ({positives}); say where they are:"
            f" {preparing('corpus=corpus.jsonl')}"
        )
    return TrainingSample(
        text_of(record[question], question),
        positives=passages_of(record.get(positives), positives, corpus),
        hard_negatives=passages_of(record.get(negatives), negatives, corpus),
        answers=checked_answers(record.get("answers")),
    )


def _tevatron_record(number: int, sample: TrainingSample) -> dict[str, Any]:
    return {
        "query_id": str(number),
        "query": sample.question,
        **({"answers": list(sample.answers)} if sample.answers else {}),
        "positive_passages": [_tevatron_passage(passage) for passage in sample.positives],
        "negative_passages": [
            _tevatron_passage(passage) for passage in sample.hard_negatives + sample.other_negatives
        ],
    }


def _tevatron_passage(passage: Passage) -> dict[str, Any]:
    record = {"docid": content_id(passage), "title": passage.title, "text": passage.text}
    return record if passage.teacher_score is None else {**record, "score": passage.teacher_score}


def _flag_embedding_sample(record: dict[str, Any]) -> TrainingSample:
    question = require_name(record, ("query",), "question")
    if record[require_name(record, ("pos",), "positive passage")] is None:
        raise ValueError("pos is null, expected a list of texts")
    lists = []
    for key in ("pos", "neg"):
        passages = passages_of(record.get(key), key)
        if record.get(scores := f"{key}_scores") is not None:
            passages = with_scores(passages, record[scores], scores)
        ids = name_in(record, (f"{key}_id", f"{key}_ids"))
        if ids and record[ids] is not None:
            passages = with_ids(passages, record[ids], ids)
        lists.append(passages)
    positives, negatives = lists
    return TrainingSample(
        text_of(record[question], question),
        positives,
        negatives,
        answers=checked_answers(record.get("answers")),
    )


def _flag_embedding_record(_: int, sample: TrainingSample) -> dict[str, Any]:
    """Title and text are joined by a space; ids and answers have no place in this format."""
    lists = {"pos": sample.positives, "neg": sample.hard_negatives + sample.other_negatives}
    record: dict[str, Any] = {"query": sample.question}
    for key, listed in lists.items():
        record[key] = [
            f"{passage.title} {passage.text}" if passage.title else passage.text for passage in listed
        ]
    if any(passage.teacher_score is not None for listed in lists.values() for passage in listed):
        record |= {
            f"{key}_scores": [passage.teacher_score for passage in listed] for key, listed in lists.items()
        }
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

    A question without answer in its paragraph (SQuAD 2.0) has no positive.

    Bad rows are named by the line of their article and the place inside it, since most such files are a
    single line.
    """
    for index, record in enumerate(iter_member_records(path, "data")):
        where = f"data[{index}]"
        line, article = record.line, record.value
        if record.error is not None:
            yield SourceRow(path, line, None, record.error, record.sha256())
            continue
        if not isinstance(article.get("paragraphs"), list):
            found = f"{where} has no list of paragraphs among the keys {keys_of(article)}"
            yield SourceRow(path, line, None, InputError(found, file=path, line=line))
            continue
        title = article.get("title")
        # File names of Wikipedia pages have underscores for spaces.
        title = title.replace("_", " ") if isinstance(title, str) else title
        for number, paragraph in enumerate(article["paragraphs"]):
            inside = f"{where}.paragraphs[{number}]"
            if not isinstance(paragraph, dict) or not isinstance(paragraph.get("qas"), list):
                expected = "an object with context and a list qas"
                problem = InputError(f"{inside} is not a paragraph", file=path, line=line, expected=expected)
                yield SourceRow(path, line, None, problem)
                continue
            for place, entry in enumerate(paragraph["qas"]):
                parse = partial(_squad_sample, paragraph.get("context"), title, inside, place)
                yield parsed_row(path, line, parse, entry)


def _squad_sample(context: Any, title: Any, inside: str, place: int, entry: Any) -> TrainingSample:
    where = f"{inside}.qas[{place}]"
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is not an object, expected a question with its answers")
    question = text_of(entry.get("question"), f"{where}.question")
    passage = Passage(text_of(context, f"{inside}.context"), title_of(title, "title"))
    if entry.get("is_impossible") is True:
        return TrainingSample(question, ())
    listed = entry.get("answers") or []
    if not isinstance(listed, list) or any(not isinstance(answer, dict) for answer in listed):
        raise ValueError(f"{where}.answers is {describe(listed)}, expected a list of objects with text")
    answers = checked_answers(list(dict.fromkeys(str(answer.get("text", "")) for answer in listed)))
    return TrainingSample(question, (passage,), answers=tuple(answer for answer in answers if answer))
