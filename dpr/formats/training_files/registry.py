"""All formats of training data by name; which one a file has, by its content; and reading and writing by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpr.core.errors import ConfigError, InputError
from dpr.core.records import TrainingSample
from dpr.formats.json_records import iter_json_records
from dpr.formats.question_sets import grade_of
from dpr.formats.text_input import open_input
from dpr.formats.training_files import arrow_rows, beir, columns, dpr_json, flag_embedding, squad, tables, tevatron
from dpr.formats.training_files.rows import Note, ReadOptions, SourceRow
from dpr.formats.training_files.values import number_of

_HEAD_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What the beginning of a file or folder shows: ``kind`` is folder, arrow, json or table; keys of the first record, or its columns."""

    path: Path
    kind: str
    keys: frozenset[str] = frozenset()
    fields: tuple[str, ...] = ()

    @property
    def is_training_data(self) -> bool:
        """Whether some format fits."""
        return any(entry.matches(self) for entry in FORMATS.values())


@dataclass(frozen=True, slots=True)
class TrainingFormat:
    """One format: how it is told, read, and (where ``write`` is there) written."""

    name: str
    about: str
    example: str
    read: Callable[[Path, ReadOptions], Iterator[SourceRow]]
    matches: Callable[[Glimpse], bool]
    write: Callable[[Path, Iterable[TrainingSample], Note], int] | None = None


def _is_json_with(*keys: str) -> Callable[[Glimpse], bool]:
    return lambda seen: seen.kind == "json" and any(key in seen.keys for key in keys)


def _is_qrels(seen: Glimpse) -> bool:
    if seen.kind == "folder":
        return (seen.path / "qrels").is_dir()
    if seen.kind != "table" or not seen.fields:
        return False
    last_is_grade = grade_of(seen.fields[-1]) is not None
    is_header = tuple(field.strip().lower() for field in seen.fields) == ("query-id", "corpus-id", "score")
    return is_header or (len(seen.fields) in (3, 4) and last_is_grade and not _is_scored_pair(seen.fields))


def _is_scored_pair(fields: tuple[str, ...]) -> bool:
    """Question, passage and a number: with spaces in a text, or no whole number, these are not the ids and the grade of a judgement."""
    is_text = any(" " in field.strip() for field in fields[:2])
    return len(fields) == 3 and number_of(fields[2]) is not None and (is_text or grade_of(fields[2]) is None)


def _is_triple(seen: Glimpse) -> bool:
    return seen.kind == "table" and len(seen.fields) == 3 and not _is_scored_pair(seen.fields) and not _has_header(seen, "query-id", "id")


def _is_pair(seen: Glimpse) -> bool:
    if seen.kind != "table" or _has_header(seen):
        return False
    is_question_set = seen.fields[1:] and seen.fields[1].lstrip().startswith(("['", '["', "[]"))  # DPR's: a question and its answers
    return (len(seen.fields) == 2 and not is_question_set) or _is_scored_pair(seen.fields)


def _has_header(seen: Glimpse, *others: str) -> bool:
    return columns.is_header(seen.fields) or seen.fields[0].strip().lower() in others


def _has_columns(seen: Glimpse) -> bool:
    if seen.kind == "json":
        return columns.has_columns(seen.keys, is_json=True)
    return seen.kind == "arrow" or (seen.kind == "table" and columns.is_header(seen.fields))


FORMATS = {
    entry.name: entry
    for entry in (
        TrainingFormat(
            "dpr",
            "DPR's JSON or JSON lines: what training reads and what is written by default",
            '{"question": "...", "answers": [], "positive_ctxs": [{"title": "", "text": "..."}], "hard_negative_ctxs": [...]}',
            dpr_json.read,
            _is_json_with("positive_ctxs"),
            dpr_json.write_training_set,
        ),
        TrainingFormat(
            "beir",
            "folder with corpus.jsonl, queries.jsonl, qrels/<split>.tsv (or a file of judgements, queries= and corpus=)",
            "qrels: query-id <TAB> corpus-id <TAB> score",
            beir.read,
            _is_qrels,
            beir.write,
        ),
        TrainingFormat(
            "tevatron",
            "Tevatron's JSON lines, version 1 (passages in the row) and 2 (ids, with corpus=)",
            '{"query_id": "1", "query": "...", "positive_passages": [{"docid": "7", "title": "", "text": "..."}], "negative_passages": []}',
            tevatron.read,
            _is_json_with("positive_passages", "positive_document_ids"),
            tevatron.write,
        ),
        TrainingFormat(
            "flagembedding",
            "FlagEmbedding's JSON lines: plain texts",
            '{"query": "...", "pos": ["..."], "neg": ["..."]}',
            flag_embedding.read,
            lambda seen: seen.kind == "json" and {"query", "pos"} <= seen.keys,
            flag_embedding.write,
        ),
        TrainingFormat(
            "squad",
            "SQuAD's JSON: paragraphs are passages, articles give the titles",
            '{"data": [{"title": "...", "paragraphs": [{"context": "...", "qas": [{"question": "...", "answers": [...]}]}]}]}',
            squad.read,
            lambda seen: seen.kind == "json" and "data" in seen.keys and "positive_ctxs" not in seen.keys,
        ),
        TrainingFormat(
            "triples",
            "MS MARCO's triples, tab-separated: texts, or ids with queries= and corpus=",
            "question <TAB> positive passage <TAB> negative passage",
            tables.read_triples,
            _is_triple,
        ),
        TrainingFormat(
            "pairs",
            "tab-separated question and passage (or ids with queries= and corpus=), with a label or score or without",
            "question <TAB> passage <TAB> 1",
            tables.read_pairs,
            _is_pair,
        ),
        TrainingFormat(
            "columns",
            "JSON lines, TSV or CSV with header, Parquet, datasets folder: columns query, positive, negative, label (question=COLUMN ...)",
            '{"query": "...", "positive": "...", "negative_1": "...", "negative_2": "..."}',
            columns.read,
            _has_columns,
        ),
    )
}


def read_rows(path: Path, options: ReadOptions, *, format_name: str = "") -> Iterator[SourceRow]:
    """Rows of a file or folder in a format that is named, or told by the content."""
    return FORMATS[format_name or detect(path, options)].read(path, options)


def detect(path: Path, options: ReadOptions | None = None, *, fallback: str = "") -> str:
    """The name of the format that the content shows. ``fallback`` is taken for JSON and empty files that show none.

    Raises:
        InputError: none fits, or more than one.
    """
    if options is not None and options.columns:
        return "columns"
    seen = look_at(path)
    fitting = [name for name, entry in FORMATS.items() if entry.matches(seen)]
    if len(fitting) == 1:
        return fitting[0]
    if fallback and not fitting and seen.kind in ("json", "empty"):
        return fallback
    shown = (
        f"{len(seen.fields)} columns" if seen.kind == "table" else f"keys {', '.join(sorted(seen.keys)[:12])}" if seen.keys else seen.kind
    )
    if fitting:
        raise InputError(f"fits the formats {' and '.join(fitting)} ({shown})", file=path, hint=f"say which, e.g. format={fitting[0]}")
    expected = f"one of the formats {', '.join(FORMATS)} (dpr prepare --help shows them)"
    hint = "or name columns: question=... positive=..."
    if len(seen.fields) == 1 and "," in seen.fields[0]:
        hint = "columns that are separated by commas need a header, such as question,passage or question,positive,negative"
    raise InputError(f"not training data of a known format ({shown})", file=path, expected=expected, hint=hint)


def files_read(path: Path) -> list[Path]:
    """The file and what belongs to it: a file of judgements is nothing without its corpus and questions."""
    return [path, *beir.companions(path)]


def look_at(path: Path) -> Glimpse:
    """Looks at the beginning of a file, or at a folder's names."""
    if path.is_dir():
        return Glimpse(path, "folder" if (path / "qrels").is_dir() or not arrow_rows.is_arrow(path) else "arrow")
    if arrow_rows.is_arrow(path):
        return Glimpse(path, "arrow", frozenset(arrow_rows.arrow_columns(path)))
    with open_input(path) as stream:
        head = stream.peek(_HEAD_BYTES)[:_HEAD_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        return Glimpse(path, "empty")
    if head[:1] not in (b"{", b"["):
        return Glimpse(path, "table", fields=tuple(next(tables.table_rows(path), (1, [""]))[1]))
    is_long_line = head.startswith(b"{") and b"\n" not in head and len(head) > _HEAD_BYTES // 2
    try:
        record = None if is_long_line else next(iter_json_records(path), None)
    except InputError:
        record = None
    if record is not None and record.error is None:
        return Glimpse(path, "json", frozenset(record.value))
    # One object over many lines, or longer than a line may be: its keys as far as they are in sight.
    return Glimpse(path, "json", frozenset(re.findall(r'"(\w+)"\s*:', head.decode("utf-8", "replace"))))


def format_named(name: str, *, to_write: bool = False) -> TrainingFormat:
    """The format of this name.

    Raises:
        ConfigError: there is none, or it is not written.
    """
    known = [key for key, entry in FORMATS.items() if entry.write is not None or not to_write]
    if name not in known:
        raise ConfigError(f"format {name} {'is not written' if name in FORMATS else 'is not known'}; choose one of {', '.join(known)}")
    return FORMATS[name]
