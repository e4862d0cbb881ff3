"""Columns for question, positive and negative: JSON lines, tables, Parquet, Hugging Face ``datasets`` folders.

Columns are found by their usual names, or named by role. Tables of pairs, with a label or score or without, and
MS MARCO's triples need no header; they hold texts, or ids. Consecutive rows with the same question become one
sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.arrow_files import is_arrow
from dpr.formats.column_names import (
    GRADES,
    LABELS,
    NEGATIVES,
    PASSAGE_IDS,
    POSITIVES,
    QUESTION_IDS,
    QUESTIONS,
    TITLES,
    name_in,
    named_columns,
    require_distinct,
    require_name,
)
from dpr.formats.delimited import table_form, table_rows
from dpr.formats.text_input import open_input
from dpr.formats.text_store import TextStore, open_store
from dpr.formats.training_files.rows import (
    ReadOptions,
    SourceRow,
    joined,
    parsed_row,
    preparing,
    record_rows,
    unnumbered,
)
from dpr.formats.training_records import (
    TEVATRON_LISTS,
    answers_in,
    checked_answers,
    id_of,
    is_printed_list,
    number_of,
    passages_of,
    split_by_grade,
    text_of,
    title_of,
    with_scores,
)

HEAD_BYTES = 2**16
ROLES = ("question", "positive", "negative", "title", "answers", "label")
_QUESTION_IDS = tuple(name for name in QUESTION_IDS if name not in ("_id", "id"))  # which are the row's
_POSITIVE_IDS = ("positive_id", "positive_ids", "positive_document_ids", "pos_id", "positive_passage_id")
_NEGATIVE_IDS = (
    "negative_id",
    "negative_ids",
    "negative_document_ids",
    "neg_id",
    "neg_ids",
    "negative_passage_id",
    "negative_passage_ids",
)
_ROLES_OF_TABLES = {
    "question": (*QUESTIONS, *QUESTION_IDS),
    "positive": (*POSITIVES, "text", "answer", *PASSAGE_IDS),
    "negative": NEGATIVES,
}
_LISTS_KNOWN = (
    *QUESTIONS,
    *POSITIVES,
    *NEGATIVES,
    *_QUESTION_IDS,
    *_POSITIVE_IDS,
    *_NEGATIVE_IDS,
    *TITLES,
    "answers",
    "pos_scores",
    "neg_scores",
    "prompt",
)
_KNOWN = (*_LISTS_KNOWN, *LABELS)


def has_columns(keys: Iterable[str]) -> bool:
    """Whether the columns of records with these keys can be found by their names."""
    names = set(keys)
    if "paragraphs" in names:  # SQuAD's, where questions lie deeper
        return False
    return bool(names & {*QUESTIONS, *_QUESTION_IDS}) and bool(names & {*POSITIVES, *_POSITIVE_IDS})


def is_header(fields: Sequence[str]) -> bool:
    """Whether the first row of a table names columns that can be read."""
    return has_columns(name.strip().lower() for name in fields)


def read(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Rows whose columns hold texts, lists of texts, objects with text and title, or, with a corpus, ids."""
    unknown = set(options.columns) - set(ROLES)
    if unknown:
        raise ConfigError(
            f"unknown role of a column: {', '.join(sorted(unknown))}; choose one of {', '.join(ROLES)}"
        )
    parser = _parser(path, options)
    if not is_arrow(path) and not head_of(path).lstrip().startswith(("{", "[")):
        return joined(_table_rows(path, parser))
    return joined(record_rows(path, parser, options, _known(options)))


def read_lists(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Tevatron's records, version 1 with the passages in the row and version 2 with their ids and
    ``options.corpus``, and FlagEmbedding's: one row for each, whatever its question."""
    return record_rows(path, replace(_parser(path, options), labels=()), options, _LISTS_KNOWN)


def read_pairs(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Rows of question and passage, or of question, passage and a label or score
    (``ReadOptions.min_grade``)."""
    return joined(_rows_in_order(path, options, ("question", "positive")))


def read_triples(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Rows of question, positive and negative passage."""
    return joined(_rows_in_order(path, options, ("question", "positive", "negative")))


def head_of(path: Path) -> str:
    """The beginning of a text file, without a byte order mark."""
    with open_input(path) as stream:
        return stream.peek(HEAD_BYTES)[:HEAD_BYTES].decode("utf-8", "replace").removeprefix("\ufeff")


def training_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of every row that is not blank, with the line that the row ends on.

    Raises:
        InputError: what ``table_rows`` raises.
    """
    for line, fields in table_rows(path, table_form(path)):
        if any(field.strip() for field in fields):
            yield line, fields


def _rows_in_order(path: Path, options: ReadOptions, roles: tuple[str, ...]) -> Iterator[SourceRow]:
    """Rows of a table whose columns are in the order of ``roles``, if no header says otherwise."""
    parser = _parser(path, options)
    if (parser.queries is None) != (parser.corpus is None):
        raise ConfigError(
            "rows of ids need both, the questions and the passages: queries=queries.tsv corpus=collection.tsv"
        )
    rows = training_rows(path)
    line, first = next(rows, (1, []))
    needed = {role: _ROLES_OF_TABLES[role] for role in roles}
    order = named_columns(first, needed, {"label": GRADES}, file=path, line=line)
    if order is None:
        rows = chain([(line, first)], rows)

    def parse(fields: list[str]) -> TrainingSample:
        columns = dict(zip(roles, ("the question", "column 2", "column 3"), strict=False))
        if order is not None and len(fields) == len(first):
            fields = [fields[place] for place in order.values()]
        if len(roles) == 2 and len(fields) == 3 and number_of(fields[2]) is not None:
            columns["label"] = "column 3"
        if len(fields) != len(columns):
            raise ValueError(f"{len(fields)} columns, expected {len(roles)}, separated by tabs")
        record = dict(zip(columns.values(), map(str.strip, fields) if parser.corpus else fields, strict=True))
        return replace(parser, options=replace(options, columns=columns))(record)

    for line, fields in rows:
        yield parsed_row(path, line, parse, fields)


def _known(options: ReadOptions) -> tuple[str, ...]:
    return (*_KNOWN, *(name.partition(".")[0] for name in options.columns.values()))


def _table_rows(path: Path, parse: _Parser) -> Iterator[SourceRow]:
    rows = training_rows(path)
    line, header = next(rows, (1, []))
    names = [name.strip() if parse.options.columns else name.strip().lower() for name in header]
    known = _known(parse.options)
    require_distinct({name for name in names if unnumbered(name) in known}, names, file=path, line=line)
    parse.options.unread.look(names, known, file=path, line=line)

    def parse_fields(fields: list[str]) -> TrainingSample:
        if len(fields) != len(names):
            raise ValueError(f"{len(fields)} columns, expected {len(names)} as in the header")
        return parse({name: _cell(field) for name, field in zip(names, fields, strict=True)})

    for line, fields in rows:
        yield parsed_row(path, line, parse_fields, fields)


def _cell(field: str) -> Any:
    """The value of a table's field: a text, a list of texts as pandas writes it, or None for an empty one."""
    if is_printed_list(field):
        with suppress(ValueError):
            return answers_in(field)
    return field or None


def _parser(path: Path, options: ReadOptions) -> _Parser:
    """With the questions and passages that rows name by id, where they are given."""
    queries = open_store(options.queries, cache_dir=options.cache_dir) if options.queries else None
    corpus = open_store(options.corpus, cache_dir=options.cache_dir) if options.corpus else None
    return _Parser(path, options, queries, corpus)


@dataclass(frozen=True, slots=True)
class _Parser:
    """Record -> sample, by roles."""

    path: Path
    options: ReadOptions
    queries: TextStore | None
    corpus: TextStore | None
    labels: tuple[str, ...] = LABELS

    def __call__(self, record: dict[str, Any]) -> TrainingSample:
        named = self.options.columns
        question, answers = self._question(record)
        name = named.get("title") or name_in(record, TITLES)
        title = title_of(_at(record, name), name) if name else ""
        positives = self._passages(record, self._positive_column(record), title)
        negatives: tuple[Passage, ...] = ()
        columns = [named["negative"]] if "negative" in named else self._negative_columns(record)
        for column in columns:
            negatives += self._passages(record, column)

        label = named.get("label") or next((name for name in self.labels if record.get(name) is not None), "")
        if not label:
            return TrainingSample(question, positives, negatives, answers=answers)
        value = _at(record, label)
        passages = positives + negatives
        if not columns:
            positives, negatives = split_by_grade(positives, value, label, self.options.min_grade)
        elif isinstance(value, list | tuple) and len(value) == len(passages):
            # As sentence-transformers has them: a teacher's scores, those of positives first.
            passages = with_scores(passages, value, label)
            positives, negatives = passages[: len(positives)], passages[len(positives) :]
        else:  # a margin, perhaps, which tells nothing of one passage
            why = "a teacher's scores are a list, one for each passage, the positive's first"
            self.options.unread.warn(label, why, self.path)
        return TrainingSample(question, positives, negatives, answers=answers)

    def _question(self, record: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
        """The question and its answers."""
        named = self.options.columns
        known = _QUESTION_IDS if self.queries else QUESTIONS
        name = named.get("question") or _named(record, known, "question")
        question = _at(record, name)
        answers: tuple[str, ...] = ()
        if self.queries is not None:
            question, answers = self.queries.question(id_of(question, name))
        question = text_of(question, name)
        if "pos" in record and record.get("prompt"):
            # FlagEmbedding's, in its default query_instruction_format.
            question = text_of(record["prompt"], "prompt") + question
            self.options.unread.warnings.setdefault(
                "prompt",
                f"{self.path}: a row's prompt becomes the beginning of its question; search with the same prompt",
            )
        value = _at(record, named["answers"]) if "answers" in named else record.get("answers")
        if value is not None:
            answers = tuple(dict.fromkeys(checked_answers(value)))
        return question, answers

    def _positive_column(self, record: dict[str, Any]) -> str:
        if "positive" in self.options.columns:
            return self.options.columns["positive"]
        ids = name_in(record, _POSITIVE_IDS)
        if self.corpus is None and ids and not name_in(record, POSITIVES):
            raise ValueError(
                f"the row names passages by id ({ids}); say where they are: {preparing('corpus=corpus.jsonl')}"
            )
        return _named(record, (*_POSITIVE_IDS, *POSITIVES) if self.corpus else POSITIVES, "positive")

    def _negative_columns(self, record: dict[str, Any]) -> list[str]:
        by_id = [key for key in record if unnumbered(key) in _NEGATIVE_IDS] if self.corpus else []
        return by_id or [key for key in record if unnumbered(key) in NEGATIVES]

    def _passages(self, record: dict[str, Any], name: str, title: str = "") -> tuple[Passage, ...]:
        corpus = None if name in TEVATRON_LISTS else self.corpus
        passages = passages_of(_at(record, name), name, corpus, title=title)
        scores = f"{name}_scores"  # FlagEmbedding's lists beside the texts
        if name in ("pos", "neg") and record.get(scores) is not None:
            return with_scores(passages, record[scores], scores)
        return passages


def _named(record: dict[str, Any], names: tuple[str, ...], role: str) -> str:
    try:
        return require_name(record, names, role)
    except ValueError as error:
        raise ValueError(f"{error}; {preparing(f'{role}=COLUMN')} reads others") from None


def _at(record: Any, path: str) -> Any:
    """The value at ``a.b``; of lists on the way, the values of all items as one list."""
    if isinstance(record, list):
        values = [_at(item, path) for item in record]
        return [leaf for value in values for leaf in (value if isinstance(value, list) else [value])]
    if isinstance(record, dict) and path in record:
        return record[path]
    name, _, rest = path.partition(".")
    if not isinstance(record, dict) or name not in record:
        raise ValueError(f"no column {path!r}")
    return _at(record[name], rest) if rest else record[name]
