"""Records with columns for question, positive and negative: JSON lines, Parquet, Hugging Face ``datasets`` folders.

Columns are found by the names that people give them, or named by role. Rows that follow each other with the same question become one
sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.training_files.arrow_rows import arrow_columns, arrow_rows, is_arrow
from dpr.formats.training_files.lookup import Lookup, open_lookup
from dpr.formats.training_files.rows import ReadOptions, SourceRow, good_row, joined, json_rows, value_hash_text
from dpr.formats.training_files.values import id_of, passages_of, text_of, title_of
from dpr.formats.training_records import checked_answers

ROLES = ("question", "positive", "negative", "title", "answers")
_QUESTIONS = ("question", "query", "anchor", "query_text")
_POSITIVES = ("positive", "positives", "pos", "positive_passages", "positive_ctxs", "passage", "context")
_NEGATIVES = re.compile(r"(hard_)?neg(ative)?s?([_-]?\d+)?|(hard_)?negative_(passages|ctxs)")
_QUESTION_IDS = ("query_id", "qid", "question_id")
_POSITIVE_IDS = ("positive_id", "positive_ids", "positive_document_ids", "pos_id", "positive_passage_id")
_NEGATIVE_IDS = re.compile(r"(negative|neg)_(document_|passage_)?ids?|negative_id_\d+")
# JSON lines with these keys are other formats of this package.
_OTHER_FORMATS = {"pos", "positive_passages", "positive_ctxs", "positive_document_ids"}


def has_columns(keys: Iterable[str], *, is_json: bool) -> bool:
    """Whether records with these keys can be read without being told which column is what."""
    names = set(keys) - (_OTHER_FORMATS if is_json else set())
    if "paragraphs" in names:  # SQuAD's, where questions lie deeper
        return False
    return bool(names & {*_QUESTIONS, *_QUESTION_IDS}) and bool(names & {*_POSITIVES, *_POSITIVE_IDS})


def read(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Rows of all columns' values; texts, lists of texts, objects with text and title, or, with a corpus, ids."""
    unknown = set(options.columns) - set(ROLES)
    if unknown:
        raise ConfigError(f"no such role of a column: {', '.join(sorted(unknown))}; there are {', '.join(ROLES)}")
    queries = open_lookup(options.queries, options.cache_dir) if options.queries else None
    corpus = open_lookup(options.corpus, options.cache_dir) if options.corpus else None
    parser = _Parser(options.columns, queries, corpus)
    return joined(_arrow_rows(path, options, parser) if is_arrow(path) else json_rows(path, parser))


def _arrow_rows(path: Path, options: ReadOptions, parse: Callable[[dict[str, Any]], TrainingSample]) -> Iterator[SourceRow]:
    arrow_columns(path, options.split)  # says first whether the file can be read at all
    for file, number, value in arrow_rows(path, split=options.split):
        yield good_row(file, number, lambda value=value: parse(value), lambda value=value: value_hash_text(value))  # type: ignore[misc]


class _Parser:
    """Record -> sample, by roles."""

    def __init__(self, columns: dict[str, str], queries: Lookup | None, corpus: Lookup | None) -> None:
        self._columns, self._queries, self._corpus = columns, queries, corpus

    def __call__(self, record: dict[str, Any]) -> TrainingSample:
        question, answers = self._question(record)
        value = _at(record, self._columns["answers"]) if "answers" in self._columns else record.get("answers")
        if isinstance(value, dict):  # SQuAD's in Parquet: one object of lists
            value = value.get("text")
        if value is not None:
            answers = tuple(dict.fromkeys(checked_answers(_flat(value))))
        title_column = self._columns.get("title", "title")
        title = title_of(_at(record, title_column) if title_column.split(".")[0] in record else None, title_column)
        return TrainingSample(
            question,
            positives=self._passages(record, "positive", _POSITIVES, _POSITIVE_IDS, title),
            hard_negatives=self._negatives(record),
            answers=answers,
        )

    def _question(self, record: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
        name = self._columns.get("question") or _first(record, _QUESTION_IDS if self._queries else _QUESTIONS, "question")
        value = _at(record, name)
        if self._queries is None:
            return text_of(value, name), ()
        text, answers = self._queries.question(id_of(value, name))
        return text_of(text, name), answers

    def _passages(self, record: dict[str, Any], role: str, texts: tuple[str, ...], ids: tuple[str, ...], title: str) -> tuple[Passage, ...]:
        name = self._columns.get(role) or _first(record, (*ids, *texts) if self._corpus else texts, role)
        return passages_of(_at(record, name), name, self._corpus, title=title)

    def _negatives(self, record: dict[str, Any]) -> tuple[Passage, ...]:
        if name := self._columns.get("negative"):
            return passages_of(_flat(_at(record, name)), name, self._corpus)
        pattern = _NEGATIVE_IDS if self._corpus else _NEGATIVES
        names = [name for name in record if pattern.fullmatch(name)]
        return tuple(passage for name in names for passage in passages_of(record[name], name, self._corpus))


def _first(record: dict[str, Any], names: tuple[str, ...], role: str) -> str:
    found = [name for name in names if name in record]
    if not found:
        shown = ", ".join(list(record)[:12])
        raise ValueError(f"no column for the {role} among {shown}, expected {', '.join(names)}, or {role}=COLUMN")
    return found[0]


def _at(record: Any, path: str) -> Any:
    """The value at ``a.b``; of lists on the way, the values of all items."""
    if isinstance(record, dict) and path in record:
        return record[path]
    name, _, rest = path.partition(".")
    if isinstance(record, list):
        return [_at(item, path) for item in record]
    if not isinstance(record, dict) or name not in record:
        raise ValueError(f"no column {path!r}")
    return _at(record[name], rest) if rest else record[name]


def _flat(value: Any) -> Any:
    """Lists inside lists as one list; anything else as it is."""
    if not isinstance(value, list):
        return value
    return [leaf for item in value for leaf in (_flat(item) if isinstance(item, list) else [item])]
