"""Training files of other toolkits (Tevatron, FlagEmbedding), and any with columns for question, positive and
negative in JSON lines, tables, Parquet and Hugging Face ``datasets`` folders.

Columns are found by their usual names, or named by role. Tables of pairs, with a label or score or without,
and MS MARCO's triples need no header; they hold texts, or ids. Consecutive rows with the same question become
one sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.arrow_files import is_arrow
from dpr.formats.delimited import named_columns, table_form, table_rows
from dpr.formats.passage_records import TEVATRON_LISTS, passages_of, split_by_grade, with_scores
from dpr.formats.record_fields import (
    GRADES,
    LABELS,
    NAMED_QUESTION_IDS,
    NEGATIVES,
    PASSAGE_IDS,
    POSITIVES,
    QUESTION_IDS,
    QUESTIONS,
    TITLES,
    answers_in,
    checked_answers,
    id_of,
    is_printed_list,
    name_in,
    require_name,
    text_of,
    title_of,
)
from dpr.formats.text_input import open_input
from dpr.formats.text_output import Note, write_json_lines
from dpr.formats.training_files.rows import (
    ReadOptions,
    SourceRow,
    content_id,
    joined,
    parsed_row,
    preparing,
    record_rows,
    unnumbered,
)

HEAD_BYTES = 2**16
ROLES = ("question", "positive", "negative", "title", "answers", "label")
_POSITIVE_IDS = tuple("positive_id positive_ids positive_document_ids pos_id positive_passage_id".split())
_NEGATIVE_IDS = tuple(
    "negative_id negative_ids negative_document_ids neg_id neg_ids negative_passage_id"
    " negative_passage_ids".split()
)
_ROLES_OF_TABLES = {
    "question": (*QUESTIONS, *QUESTION_IDS),
    "positive": (*POSITIVES, "text", "answer", *PASSAGE_IDS),
    "negative": NEGATIVES,
}
_KNOWN = (
    *QUESTIONS,
    *POSITIVES,
    *NEGATIVES,
    *NAMED_QUESTION_IDS,
    *_POSITIVE_IDS,
    *_NEGATIVE_IDS,
    *TITLES,
    "answers",
    "pos_scores",
    "neg_scores",
    "prompt",
)
Parse = Callable[[dict[str, Any]], TrainingSample]


def has_columns(keys: Iterable[str]) -> bool:
    """True if the columns of records with these keys can be found by their names."""
    names = set(keys)
    if "paragraphs" in names:  # SQuAD's, where questions lie deeper
        return False
    return bool(names & {*QUESTIONS, *NAMED_QUESTION_IDS}) and bool(names & {*POSITIVES, *_POSITIVE_IDS})


def read(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Yields rows whose columns hold texts, lists of texts, objects with text and title or, with a corpus,
    ids."""
    if unknown := set(options.columns) - set(ROLES):
        raise ConfigError(
            f"unknown role of a column: {', '.join(sorted(unknown))}; choose one of {', '.join(ROLES)}"
        )
    if not is_arrow(path) and not head_of(path).lstrip().startswith(("{", "[")):
        return joined(_table_rows(path, options))
    return joined(record_rows(path, _parser(path, options), options, _known(options)))


def read_lists(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Yields one row for each record, whatever its question: Tevatron's, version 1 with the passages in the
    row and version 2 with their ids and ``options.corpus``; and FlagEmbedding's."""
    return record_rows(path, _parser(path, options, labels=()), options, _KNOWN)


def head_of(path: Path) -> str:
    """Returns the beginning of a text file, without a byte order mark."""
    with open_input(path) as stream:
        return stream.peek(HEAD_BYTES)[:HEAD_BYTES].decode("utf-8", "replace").removeprefix("\ufeff")


def read_in_order(path: Path, options: ReadOptions, roles: tuple[str, ...]) -> Iterator[SourceRow]:
    """Yields rows of a table whose columns are in the order of ``roles``, unless a header says otherwise.
    Rows of question and passage may have a label or score as third column (``ReadOptions.min_grade``)."""
    if (options.queries is None) != (options.corpus is None):
        raise ConfigError(
            "rows of ids need both questions and passages: queries=queries.tsv corpus=collection.tsv"
        )
    first = table_form(path).first
    needed = {role: _ROLES_OF_TABLES[role] for role in roles}
    places = named_columns(first, needed, {"label": GRADES}, path)
    if places is not None:
        columns = {role: first[place].strip() for role, place in places.items()}
        return joined(_table_rows(path, replace(options, columns=columns)))
    if len(roles) == 2 and len(first) == 3:
        roles = (*roles, "label")
    names = ("the question", "column 2", "column 3")[: len(roles)]
    return joined(_table_rows(path, replace(options, columns=dict(zip(roles, names, strict=True))), names))


def _known(options: ReadOptions) -> tuple[str, ...]:
    return (*_KNOWN, *LABELS, *(name.partition(".")[0] for name in options.columns.values()))


def _table_rows(path: Path, options: ReadOptions, names: Sequence[str] = ()) -> Iterator[SourceRow]:
    """Yields rows of a table whose columns have these names, or else those in its first row."""
    parse = _parser(path, options)
    rows = (item for item in table_rows(path, table_form(path)) if any(map(str.strip, item[1])))
    if not names:
        line, header = next(rows, (1, []))
        names = [name.strip() if options.columns else name.strip().lower() for name in header]
        options.unread.look(names, _known(options), file=path, line=line)
        named_columns(names, {}, {name: (name,) for name in _known(options)}, path)  # none twice

    def parse_fields(fields: list[str]) -> TrainingSample:
        if len(fields) != len(names):
            raise ValueError(f"{len(fields)} columns, expected {len(names)}, as in the first row")
        record: dict[str, Any] = {}
        for name, text in zip(names, fields, strict=True):
            record[name] = text or None
            if is_printed_list(text):  # a list of texts as pandas writes it
                with suppress(ValueError):
                    record[name] = answers_in(text)
        return parse(record)

    for line, fields in rows:
        yield parsed_row(path, line, parse_fields, fields)


def _parser(path: Path, options: ReadOptions, labels: tuple[str, ...] = LABELS) -> Parse:
    """Returns a function from record to sample, by roles. It looks up questions and passages that rows name
    by id, if their files are given."""
    queries = options.open_store(options.queries) if options.queries else None
    corpus = options.open_store(options.corpus) if options.corpus else None
    named = options.columns

    def column(record: dict[str, Any], role: str, known: tuple[str, ...]) -> str:
        if role in named:
            return named[role]
        try:
            return require_name(record, known, role)
        except ValueError as error:
            raise ValueError(f"{error}; {preparing(f'{role}=COLUMN')} names another column") from None

    def passages_in(record: dict[str, Any], name: str, title: str = "") -> tuple[Passage, ...]:
        value = _at(record, name)
        find = None if corpus is None or name in TEVATRON_LISTS else corpus.passage
        passages = passages_of(value, name, find, title=title)
        scores = f"{name}_scores"  # FlagEmbedding's lists beside the texts
        if name in ("pos", "neg") and record.get(scores) is not None:
            return with_scores(passages, record[scores], scores)
        return passages

    def parse(record: dict[str, Any]) -> TrainingSample:
        name = column(record, "question", NAMED_QUESTION_IDS if queries else QUESTIONS)
        question = _at(record, name)
        answers: tuple[str, ...] = ()
        if queries is not None:
            question, answers = queries.question(id_of(question, name))
        question = text_of(question, name)
        if "pos" in record and record.get("prompt"):
            # FlagEmbedding's, in its default query_instruction_format.
            question = text_of(record["prompt"], "prompt") + question
            options.unread.warnings.setdefault(
                "prompt",
                f"{path}: a row's prompt becomes the beginning of its question; search with the same prompt",
            )
        given = _at(record, named["answers"]) if "answers" in named else record.get("answers")
        if given is not None:
            answers = tuple(dict.fromkeys(checked_answers(given)))

        name = named.get("title") or name_in(record, TITLES)
        title = title_of(_at(record, name), name) if name else ""
        ids = name_in(record, _POSITIVE_IDS)
        if corpus is None and ids and "positive" not in named and not name_in(record, POSITIVES):
            raise ValueError(
                f"the row names passages by id ({ids}); say where they are: {preparing('corpus=corpus.jsonl')}"
            )
        name = column(record, "positive", (*_POSITIVE_IDS, *POSITIVES) if corpus else POSITIVES)
        positives = passages_in(record, name, title)
        if "negative" in named:
            columns = [named["negative"]]
        else:
            columns = [key for key in record if corpus and unnumbered(key) in _NEGATIVE_IDS]
            columns = columns or [key for key in record if unnumbered(key) in NEGATIVES]
        negatives = tuple(passage for name in columns for passage in passages_in(record, name))

        label = named.get("label") or next((name for name in labels if record.get(name) is not None), "")
        if not label:
            return TrainingSample(question, positives, negatives, answers=answers)
        value = _at(record, label)
        passages = positives + negatives
        if not columns:
            positives, negatives = split_by_grade(positives, value, label, options.min_grade)
        elif isinstance(value, list | tuple) and len(value) == len(passages):
            # As sentence-transformers has them: a teacher's scores, those of positives first.
            passages = with_scores(passages, value, label)
            positives, negatives = passages[: len(positives)], passages[len(positives) :]
        else:  # a margin, perhaps, which tells nothing of one passage
            why = "a teacher's scores are a list: one for each passage, the positive first"
            options.unread.warn(label, why, path)
        return TrainingSample(question, positives, negatives, answers=answers)

    return parse


def _at(record: Any, path: str) -> Any:
    """Returns the value at ``a.b``. For a list on the way, it returns the values of all items as one list."""
    if isinstance(record, list):
        values = [_at(item, path) for item in record]
        return [leaf for value in values for leaf in (value if isinstance(value, list) else [value])]
    if isinstance(record, dict) and path in record:
        return record[path]
    name, _, rest = path.partition(".")
    if not isinstance(record, dict) or name not in record:
        raise ValueError(f"no column {path!r}")
    return _at(record[name], rest) if rest else record[name]


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
