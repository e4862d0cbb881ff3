"""Tevatron's JSON lines: version 1 with the passages in the row, version 2 with their ids and a corpus beside it. Version 1 is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dpr.core.records import Passage, TrainingSample
from dpr.formats.corpora import write_text
from dpr.formats.training_files.lookup import Lookup, open_lookup
from dpr.formats.training_files.rows import Note, ReadOptions, SourceRow, content_id, json_rows
from dpr.formats.training_files.unread_keys import KnownKeys
from dpr.formats.training_files.values import passages_of, text_of
from dpr.formats.training_records import checked_answers

_LISTS = ("positive_passages", "negative_passages", "positive_document_ids", "negative_document_ids")
_KEYS = KnownKeys(("query", "query_text", "query_id", "answers", *_LISTS))


def read(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """One row per record; both versions may be mixed."""
    corpus = open_lookup(options.corpus, options.cache_dir) if options.corpus else None
    return json_rows(path, lambda record: _sample(record, corpus), options, _KEYS)


def write(path: Path, samples: Iterable[TrainingSample], note: Note = None) -> int:
    """Writes version 1. Both kinds of negatives become ``negative_passages``; passages without id get one made of their content."""
    count = 0
    with write_text(path, note=note) as out:
        for number, sample in enumerate(samples):
            record: dict[str, Any] = {"query_id": str(number), "query": sample.question}
            if sample.answers:
                record["answers"] = list(sample.answers)
            record["positive_passages"] = [_passage(passage) for passage in sample.positives]
            record["negative_passages"] = [_passage(passage) for passage in sample.hard_negatives + sample.other_negatives]
            out.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count


def _sample(record: dict[str, Any], corpus: Lookup | None) -> TrainingSample:
    question = record.get("query", record.get("query_text"))
    if "positive_document_ids" not in record:
        if record.get("positive_passages") is None:
            raise ValueError("no positive_passages and no positive_document_ids, expected one of them")
        names, source = ("positive_passages", "negative_passages"), None
    elif corpus is None:
        raise ValueError("the row names passages by id (positive_document_ids); say where they are: corpus=corpus.jsonl")
    else:
        names, source = ("positive_document_ids", "negative_document_ids"), corpus
    return TrainingSample(
        text_of(question, "query"),
        positives=passages_of(record.get(names[0]), names[0], source),
        hard_negatives=passages_of(record.get(names[1]), names[1], source),
        answers=checked_answers(record.get("answers")),
    )


def _passage(passage: Passage) -> dict[str, str]:
    return {"docid": content_id(passage), "title": passage.title, "text": passage.text}
