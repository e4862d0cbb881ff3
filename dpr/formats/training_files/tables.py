"""Tables: question and passage, with a label or score or without, and MS MARCO's triples (question, positive, negative); texts or ids.

Consecutive rows with the same question become one sample. A tab ends a field and a newline ends a row; quotes matter only in files where
every field is quoted, and in comma-separated ones, which need a header.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.text_input import MAX_LINE_BYTES, are_column_names, iter_lines, open_input, warn_of_header
from dpr.formats.training_files.lookup import Lookup, open_lookups
from dpr.formats.training_files.rows import ReadOptions, SourceRow, joined, parsed_row
from dpr.formats.training_files.values import number_of, split_by_grade, text_of

QUESTIONS = ("question", "query", "anchor", "query_text")
_PASSAGES = ("passage", "positive", "pos", "context", "document", "text", "answer")
HEAD_BYTES = 2**16
_QUOTED = re.compile(r'"([^"]|"")*"')


def read_pairs(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Rows of question and passage, or of question, passage and a label or score (``ReadOptions.min_grade``)."""
    return joined(_rows(path, options, 2))


def read_triples(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Rows of question, positive and negative passage."""
    return joined(_rows(path, options, 3))


def head_of(path: Path) -> str:
    """The beginning of a text file, without a byte order mark."""
    with open_input(path) as stream:
        return stream.peek(HEAD_BYTES)[:HEAD_BYTES].decode("utf-8", "replace").removeprefix("\ufeff")


def is_table(path: Path) -> bool:
    """Whether a text file holds something else than JSON."""
    return not head_of(path).lstrip().startswith(("{", "["))


def table_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of every row that is not blank, with the line that the row ends on.

    Raises:
        InputError: broken quoting, or what ``iter_lines`` raises.
    """
    delimiter = _quoted_with(path)
    if not delimiter:
        for line, text in iter_lines(path):
            if text.strip():
                yield line, text.split("\t")
        return
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader((text + "\n" for _, text in iter_lines(path)), delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                yield reader.line_num, fields
    except csv.Error as error:
        raise InputError(f"not a row of quoted fields: {error}", file=path, line=reader.line_num) from None


def _quoted_with(path: Path) -> str:
    """The delimiter of a file with csv's quotes: a tab where all fields are quoted, a comma behind such a header; empty for others."""
    head = head_of(path)
    whole = head.rpartition("\n")[0] or head  # the last line may be cut where the head ends
    lines = [line for line in (head if len(head) < HEAD_BYTES // 4 else whole).split("\n") if line.strip()]
    if not lines:
        return ""
    if "\t" not in lines[0] and {name.lower() for name in _cells(lines[0], ",")} & {*QUESTIONS}:
        return ","
    is_quoted = all(_QUOTED.fullmatch(field) for line in lines for field in line.rstrip("\r").split("\t"))
    return "\t" if is_quoted else ""


def separator_of(line: str) -> tuple[str, list[str]]:
    """What separates the columns of a row that has no tab, by name, and the columns; no name where nothing does."""
    for sign, name in ((";", "semicolons"), (",", "commas"), ("|", "vertical bars")):
        if len(cells := _cells(line, sign)) > 1:
            return name, cells
    return "", []


def _cells(line: str, sign: str) -> list[str]:
    """The fields of one line, whatever it holds; none where they cannot be told."""
    try:
        return [field.strip() for field in next(csv.reader([line.replace("\r", " ")], delimiter=sign), [])]
    except csv.Error:
        return []


def _rows(path: Path, options: ReadOptions, width: int) -> Iterator[SourceRow]:
    queries, corpus = open_lookups(options)
    if (queries is None) != (corpus is None):
        raise ConfigError("rows of ids need both, the questions and the passages: queries=queries.tsv corpus=collection.tsv")
    parse = partial(_sample, width, queries, corpus, options.min_grade)
    for index, (line, fields) in enumerate(table_rows(path)):
        names = [field.strip().lower() for field in fields]
        if index or names[0] not in QUESTIONS or not are_column_names(names):  # else a header
            yield parsed_row(path, line, parse, fields)
        elif names[1:2] and names[1] not in _PASSAGES:
            warn_of_header(path, line, tuple(fields))


def _sample(width: int, queries: Lookup | None, corpus: Lookup | None, min_grade: float | None, fields: list[str]) -> TrainingSample:
    is_graded = width == 2 and len(fields) == 3 and number_of(fields[2]) is not None
    if len(fields) != width + is_graded:
        raise ValueError(f"{len(fields)} columns, expected {width}, separated by tabs")
    passages = fields[1:width]
    if queries is not None and corpus is not None:
        question, answers = queries.question(fields[0].strip())
        first, *negatives = (corpus.passage(field.strip()) for field in passages)
        question = text_of(question, "the question")
    else:
        question, answers = text_of(fields[0], "the question"), ()
        if width == 3 and number_of(fields[2]) is not None:
            raise ValueError(f"column 3 is the number {fields[2]}, expected a negative passage; format=pairs reads it as label or score")
        first, *negatives = (Passage(text_of(field, f"column {number}")) for number, field in enumerate(passages, 2))
    positives, hard = ((first,), tuple(negatives)) if not is_graded else split_by_grade((first,), fields[2], "column 3", min_grade)
    return TrainingSample(question, positives, hard, answers=answers)
