"""Formats of one JSON object per question: DPR's own (an array or JSON lines), Tevatron's and FlagEmbedding's JSON lines; and SQuAD's."""

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
from dpr.formats.training_files.lookup import Lookup, open_lookup
from dpr.formats.training_files.rows import KnownKeys, Note, ReadOptions, SourceRow, content_id, json_rows, parsed_row
from dpr.formats.training_files.values import passages_of, text_of, title_of, with_scores
from dpr.formats.training_records import checked_answers, sample_from_json, sample_to_json
from dpr.storage.strict_json import describe

_DPR_KEYS = KnownKeys(("question", "answers", "positive_ctxs", "hard_negative_ctxs", "negative_ctxs"))
_LISTS = ("positive_passages", "negative_passages", "positive_document_ids", "negative_document_ids")
_TEVATRON_KEYS = KnownKeys(("query", "query_text", "query_id", "answers", *_LISTS))
_FLAG_EMBEDDING_KEYS = KnownKeys(("query", "pos", "neg", "pos_scores", "neg_scores"))


def read_dpr(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """DPR's training files."""
    return json_rows(path, sample_from_json, options, _DPR_KEYS)


def write_training_set(path: str | Path, samples: Iterable[TrainingSample], note: Note = None) -> int:
    """Writes a DPR training file: JSON lines for names in .jsonl, else a JSON array; compressed for names in ``.gz``. Returns how many."""
    file = user_path(path)
    if file.name.removesuffix(".gz").endswith(".jsonl"):
        return _write_lines(lambda _, sample: sample_to_json(sample), file, samples, note)
    count = 0
    with durable_text(file, note=note) as out:
        for count, sample in enumerate(samples, 1):
            out.write(("[" if count == 1 else ",") + indented_record(sample_to_json(sample)))
        out.write("\n]\n" if count else "[]\n")
    return count


def join_record_files(parts: Iterable[Path], out: Path) -> None:
    """Joins files of JSON lines into one, whole or not at all, with a checksum beside it; compressed for names in ``.gz``."""
    with durable_text(out, note={}) as joined:
        for part in parts:
            joined.write(part.read_text(encoding="utf-8"))


def read_tevatron(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Tevatron's records: version 1 with the passages in the row, version 2 with their ids and ``options.corpus``. Both may be mixed."""
    corpus = open_lookup(options.corpus, options.cache_dir) if options.corpus else None
    return json_rows(path, partial(_tevatron_sample, corpus), options, _TEVATRON_KEYS)


def read_flag_embedding(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """FlagEmbedding's ``query``, ``pos`` and ``neg``, all plain texts, with their teacher's ``pos_scores`` and ``neg_scores``."""
    return json_rows(path, _flag_embedding_sample, options, _FLAG_EMBEDDING_KEYS)


def _tevatron_sample(corpus: Lookup | None, record: dict[str, Any]) -> TrainingSample:
    question = record.get("query", record.get("query_text"))
    if "positive_document_ids" not in record:
        if record.get("positive_passages") is None:
            raise ValueError("no positive_passages and no positive_document_ids, expected one of them")
        positives, negatives, corpus = "positive_passages", "negative_passages", None
    elif corpus is None:
        raise ValueError("the row names passages by id (positive_document_ids); say where they are: corpus=corpus.jsonl")
    else:
        positives, negatives = "positive_document_ids", "negative_document_ids"
    return TrainingSample(
        text_of(question, "query"),
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
        "negative_passages": [_tevatron_passage(passage) for passage in sample.hard_negatives + sample.other_negatives],
    }


def _tevatron_passage(passage: Passage) -> dict[str, Any]:
    record = {"docid": content_id(passage), "title": passage.title, "text": passage.text}
    return record if passage.teacher_score is None else {**record, "score": passage.teacher_score}


def _flag_embedding_sample(record: dict[str, Any]) -> TrainingSample:
    if record.get("pos") is None:
        raise ValueError("no pos, expected a list of texts")
    question = text_of(record.get("query"), "query")
    positives, negatives = (
        passages if record.get(f"{key}_scores") is None else with_scores(passages, record[f"{key}_scores"], f"{key}_scores")
        for key, passages in ((key, passages_of(record.get(key), key)) for key in ("pos", "neg"))
    )
    return TrainingSample(question, positives, hard_negatives=negatives)


def _flag_embedding_record(_: int, sample: TrainingSample) -> dict[str, Any]:
    """Title and text are joined by a space; ids and answers have no place in this format."""
    lists = {"pos": sample.positives, "neg": sample.hard_negatives + sample.other_negatives}
    record: dict[str, Any] = {"query": sample.question}
    for key, listed in lists.items():
        record[key] = [f"{passage.title} {passage.text}" if passage.title else passage.text for passage in listed]
    if any(passage.teacher_score is not None for listed in lists.values() for passage in listed):
        record |= {f"{key}_scores": [passage.teacher_score for passage in listed] for key, listed in lists.items()}
    return record


def _write_lines(
    record: Callable[[int, TrainingSample], dict[str, Any]], path: Path, samples: Iterable[TrainingSample], note: Note = None
) -> int:
    count = 0
    with durable_text(path, note=note) as out:
        for count, sample in enumerate(samples, 1):
            out.write(json.dumps(record(count - 1, sample), ensure_ascii=False) + "\n")
    return count


write_tevatron = partial(_write_lines, _tevatron_record)
"""Writes version 1. Both kinds of negatives become ``negative_passages``; passages without id get one made of their content."""
write_flag_embedding = partial(_write_lines, _flag_embedding_record)
"""Writes plain texts. Both kinds of negatives become ``neg``."""


def read_squad(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """SQuAD's JSON (also SQuADShifts and others of its form): one row per question, article by article; its title is that of its passages.

    A question without answer in its paragraph (SQuAD 2.0) has no positive.

    Bad rows are named by the line of their article and the place inside it, since most such files are a single line.
    """
    for index, record in enumerate(iter_member_records(path, "data")):
        if record.error is not None:
            yield SourceRow(path, record.line, None, record.error, record.sha256())
        else:
            yield from _article(path, record.line, record.value, f"data[{index}]")


def _article(path: Path, line: int, article: dict[str, Any], where: str) -> Iterator[SourceRow]:
    title = article.get("title")
    # File names of Wikipedia pages have underscores for spaces.
    title = title.replace("_", " ") if isinstance(title, str) else title
    for index, paragraph in enumerate(_objects(article.get("paragraphs"))):
        inside = f"{where}.paragraphs[{index}]"
        if paragraph is None or not isinstance(paragraph.get("qas"), list):
            problem = InputError(f"{inside} is not a paragraph", file=path, line=line, expected="an object with context and a list qas")
            yield SourceRow(path, line, None, problem)
            continue
        for place, entry in enumerate(_objects(paragraph["qas"])):
            yield parsed_row(path, line, partial(_squad_sample, paragraph, title, inside, place), entry)


def _squad_sample(paragraph: dict[str, Any], title: Any, inside: str, place: int, entry: dict[str, Any] | None) -> TrainingSample:
    where = f"{inside}.qas[{place}]"
    if entry is None:
        raise ValueError(f"{where} is not an object, expected a question with its answers")
    question = text_of(entry.get("question"), f"{where}.question")
    passage = Passage(text_of(paragraph.get("context"), f"{inside}.context"), title_of(title, "title"))
    if entry.get("is_impossible") is True:
        return TrainingSample(question, ())
    listed = entry.get("answers") or []
    if not isinstance(listed, list) or any(not isinstance(answer, dict) for answer in listed):
        raise ValueError(f"{where}.answers is {describe(listed)}, expected a list of objects with text")
    answers = checked_answers(list(dict.fromkeys(str(answer.get("text", "")) for answer in listed)))
    return TrainingSample(question, (passage,), answers=tuple(answer for answer in answers if answer))


def _objects(listed: Any) -> list[dict[str, Any] | None]:
    """The items of a list, None in place of what is not an object; a single None if it is not a list."""
    return [item if isinstance(item, dict) else None for item in (listed if isinstance(listed, list) else [None])]
