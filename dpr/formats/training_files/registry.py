"""All formats of training data by name, and the format that the content of a file shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpr.core.errors import ConfigError, InputError
from dpr.core.records import TrainingSample
from dpr.formats.arrow_files import column_names, is_arrow
from dpr.formats.delimited import separator_of
from dpr.formats.json_records import iter_json_records
from dpr.formats.question_sets import grade_of, names_judgements
from dpr.formats.training_files import beir, columns, json_formats
from dpr.formats.training_files.rows import Note, ReadOptions, SourceRow, preparing
from dpr.formats.training_records import is_printed_list, number_of


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What the beginning of a file shows: ``kind`` is folder, arrow, json, table or empty; keys of the first
    record, or its fields."""

    path: Path
    kind: str
    keys: frozenset[str] = frozenset()
    fields: tuple[str, ...] = ()

    @property
    def is_training_data(self) -> bool:
        """Whether some format fits."""
        return bool(_fitting(self))


@dataclass(frozen=True, slots=True)
class TrainingFormat:
    """One format: how it is read and, if there is ``write``, written."""

    name: str
    about: str
    example: str
    read: Callable[[Path, ReadOptions], Iterator[SourceRow]]
    write: Callable[[Path, Iterable[TrainingSample], Note], int] | None = None


def _fitting(seen: Glimpse) -> list[str]:
    """Names of the formats that fit; "columns", which are found by many names, only where no other does."""
    if seen.kind == "folder":
        return ["beir"] if (seen.path / "qrels").is_dir() else []
    if seen.kind == "table":
        return _fitting_table(seen.path, seen.fields)
    names = []
    if "positive_ctxs" in seen.keys:
        names.append("dpr")
    if seen.keys & {"positive_passages", "positive_document_ids"}:
        names.append("tevatron")
    if {"query", "pos"} <= seen.keys:
        names.append("flagembedding")
    if seen.kind == "json" and "data" in seen.keys and "positive_ctxs" not in seen.keys:
        names.append("squad")
    if not names and (seen.kind == "arrow" or columns.has_columns(seen.keys)):
        names.append("columns")
    return names


def _fitting_table(path: Path, fields: tuple[str, ...]) -> list[str]:
    if columns.is_header(fields):
        return ["columns"]
    if names_judgements(fields, path):
        return ["beir"]
    grade = grade_of(fields[-1])
    # With spaces in a text, or no whole number, these are not the ids and the grade of a judgement.
    is_text = any(" " in field.strip() for field in fields[:2])
    if len(fields) == 3 and number_of(fields[2]) is not None and (is_text or grade is None):
        return ["pairs"]
    names = []
    if len(fields) in (3, 4) and grade is not None:
        names.append("beir")
    if len(fields) == 3 and fields[0].strip().lower() != "id":
        names.append("triples")
    if len(fields) == 2 and not is_printed_list(fields[1]):  # DPR's questions have their answers there
        names.append("pairs")
    return names


FORMATS = {
    entry.name: entry
    for entry in (
        TrainingFormat(
            "dpr",
            "DPR's JSON or JSON lines: what training reads and what is written by default",
            '{"question": "...", "answers": [], "positive_ctxs": [{"title": "", "text": "..."}],'
            ' "hard_negative_ctxs": [...]}',
            json_formats.read_dpr,
            json_formats.write_training_set,
        ),
        TrainingFormat(
            "beir",
            "folder with corpus.jsonl, queries.jsonl, qrels/<split>.tsv (or a file of judgements, queries="
            " and corpus=)",
            "qrels: query-id <TAB> corpus-id <TAB> score",
            beir.read,
            beir.write,
        ),
        TrainingFormat(
            "tevatron",
            "Tevatron's JSON lines or Parquet, version 1 (passages in the row) and 2 (ids, with corpus=)",
            '{"query_id": "1", "query": "...", "positive_passages": [{"docid": "7", "title": "", "text":'
            ' "..."}], "negative_passages": []}',
            columns.read_lists,
            json_formats.write_tevatron,
        ),
        TrainingFormat(
            "flagembedding",
            "FlagEmbedding's JSON lines or Parquet: plain texts; a prompt becomes the beginning of its"
            " question",
            '{"query": "...", "pos": ["..."], "neg": ["..."]}',
            columns.read_lists,
            json_formats.write_flag_embedding,
        ),
        TrainingFormat(
            "squad",
            "SQuAD's JSON: paragraphs are passages, articles give the titles",
            '{"data": [{"title": "...", "paragraphs": [{"context": "...", "qas": [{"question": "...",'
            ' "answers": [...]}]}]}]}',
            json_formats.read_squad,
        ),
        TrainingFormat(
            "triples",
            "MS MARCO's triples, tab-separated: texts, or ids with queries= and corpus=",
            "question <TAB> positive passage <TAB> negative passage",
            columns.read_triples,
        ),
        TrainingFormat(
            "pairs",
            "tab-separated question and passage (or ids with queries= and corpus=), with a label or score or"
            " without",
            "question <TAB> passage <TAB> 1",
            columns.read_pairs,
        ),
        TrainingFormat(
            "columns",
            "JSON lines, TSV or CSV with header, Parquet, datasets folder: columns query, positive, negative,"
            " label (question=COLUMN ...)",
            '{"query": "...", "positive": "...", "negative_1": "...", "negative_2": "..."}',
            columns.read,
        ),
    )
}


def format_named(name: str, *, to_write: bool = False) -> TrainingFormat:
    """The format of this name.

    Raises:
        ConfigError: there is none, or it cannot be written.
    """
    known = [key for key, entry in FORMATS.items() if entry.write is not None or not to_write]
    if name not in known:
        raise ConfigError(
            f"format {name} {'is not written' if name in FORMATS else 'is not known'}; choose one of"
            f" {', '.join(known)}"
        )
    return FORMATS[name]


def format_of(path: Path, options: ReadOptions | None = None, *, name: str = "") -> TrainingFormat:
    """The format that is named, else the one that the content shows; DPR's where there is nothing to see.

    Raises:
        ConfigError: no format has this name.
        InputError: the content fits none, or more than one.
    """
    if name or (options is not None and options.columns):
        return format_named(name or "columns")
    seen = look_at(path)
    fitting = _fitting(seen)
    if len(fitting) == 1:
        return FORMATS[fitting[0]]
    if not fitting and (seen.kind == "empty" or (seen.kind == "json" and not seen.keys)):
        return FORMATS["dpr"]
    found = f"keys {', '.join(sorted(seen.keys)[:12])}" if seen.keys else seen.kind
    found = f"{len(seen.fields)} columns" if seen.kind == "table" else found
    if fitting:
        hint = f"say which, e.g. {preparing(f'format={fitting[0]}')}"
        raise InputError(f"fits the formats {' and '.join(fitting)} ({found})", file=path, hint=hint)
    hint = f"or name columns: {preparing('question=... positive=...')}"
    separator, cells = separator_of(seen.fields[0]) if len(seen.fields) == 1 else ("", [])
    if separator:
        found = f"the first row has {len(cells)} columns, separated by {separator}: {' | '.join(cells)[:80]}"
        hint = (
            f"separate columns by tabs, or by commas under a header such as question,passage; {separator} are"
            " not read"
        )
        if separator == "commas":
            hint = "a header is missing: a first row such as question,passage or question,positive,negative"
    expected = f"one of the formats {', '.join(FORMATS)} (dpr prepare --help shows them)"
    raise InputError(
        f"not training data of a known format ({found})", file=path, expected=expected, hint=hint
    )


def files_read(path: Path) -> list[Path]:
    """The file and those it needs: judgements are read with their corpus and questions."""
    return [path, *beir.companions(path)]


def look_at(path: Path) -> Glimpse:
    """Reads the beginning of a file, or a folder's names."""
    if path.is_dir() and ((path / "qrels").is_dir() or not is_arrow(path)):
        return Glimpse(path, "folder")
    if is_arrow(path):
        return Glimpse(path, "arrow", frozenset(column_names(path)))
    head = columns.head_of(path).lstrip()
    if not head:
        return Glimpse(path, "empty")
    if head[0] not in "{[":
        return Glimpse(path, "table", fields=tuple(next(columns.training_rows(path), (1, [""]))[1]))
    is_long_line = head[0] == "{" and "\n" not in head and len(head) > columns.HEAD_BYTES // 2
    try:
        record = None if is_long_line else next(iter_json_records(path), None)
    except InputError:
        record = None
    if record is not None and record.error is None:
        return Glimpse(path, "json", frozenset(record.value))
    # One object over many lines, or longer than a line may be: its keys as far as they are in sight.
    return Glimpse(path, "json", frozenset(re.findall(r'"(\w+)"\s*:', head)))
