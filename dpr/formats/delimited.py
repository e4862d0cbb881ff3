"""Delimited files (corpora, questions, pairs, judgements): the fields of every row, by one rule of quoting
for all commands. Also the names of columns and keys, in these files and in the records of this and other
toolkits.

A tab separates fields, or a comma or semicolon if the header or the name of the file says so, or the sign
that a first line such as ``sep=;`` names. The first megabyte determines, for the whole file, whether quotes
are those of a csv file or text. In a csv file they must be right, or the row is refused; a quoted field may
span lines. In any other file a newline ends a row, and quotes are text.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.formats.text_input import MAX_LINE_BYTES, iter_lines

_COLUMN_NAME = re.compile(r"\w[\w-]*( \w[\w-]*)?")

# The first one that is there counts. A passage's own id stands before that of the document it was cut from:
# MS MARCO's have pid and docid.
ROW_IDS = ("_id", "id")
NAMED_PASSAGE_IDS = tuple("passage_id psg_id pid docid doc_id document_id docno corpus_id".split())
PASSAGE_IDS = (*ROW_IDS, *NAMED_PASSAGE_IDS)
PASSAGE_TEXTS = tuple(
    "text contents content passage passage_text document_text doc_text segment body document "
    "paragraph context".split()
)
TITLES = ("title", "passage_title", "document_title", "doc_title")
NAMED_QUESTION_IDS = ("query_id", "qid", "question_id", "topic_id")
QUESTION_IDS = (*ROW_IDS, *NAMED_QUESTION_IDS)
QUESTIONS = ("question", "query", "anchor", "query_text", "question_text")
ANSWERS = ("answers", "answer")
POSITIVES = tuple(
    "positive positives pos positive_passages positive_ctxs pos_doc pos_docs passage context document".split()
)
NEGATIVES = tuple(
    "negative negatives neg negs hard_negative hard_negatives hard_neg hard_negs neg_doc neg_docs "
    "negative_passages hard_negative_passages negative_ctxs hard_negative_ctxs".split()
)
GRADES = tuple("score grade rel relevance relevancy label rating judgement judgment qrel".split())
LABELS = tuple(
    "label labels relevance is_relevant relevant grade rating score scores similarity "
    "similarity_score".split()
)
ALL_NAMES = {
    *PASSAGE_IDS,
    *PASSAGE_TEXTS,
    *TITLES,
    *QUESTION_IDS,
    *QUESTIONS,
    *ANSWERS,
    *POSITIVES,
    *NEGATIVES,
    *GRADES,
}
_SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons"}
_STATED = re.compile(r'"?sep=([,;])"?\s*')
"""A first line that tells Excel the separator of fields."""
_HEAD_CHARACTERS = 2**20
_ENCLOSED = re.compile(r'(?<![^\t])"((?:[^"]|"")*)"(?![^\t])')  # a whole field between tabs


def keys_of(record: Mapping[str, Any]) -> str:
    """Returns the keys of a record, as messages show them."""
    shown = ", ".join(map(str, list(record)[:12]))
    return shown + (" ..." if len(record) > 12 else "") if record else "none"


def name_in(record: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns the first of ``names`` under which the record has a value other than null; else the first that
    it has at all; else an empty text."""
    filled = next((name for name in names if record.get(name) is not None), "")
    return filled or next((name for name in names if name in record), "")


def require_name(record: Mapping[str, Any], names: Sequence[str], what: str) -> str:
    """Returns a name as ``name_in`` does. If the record has none of ``names``, raises ValueError with the
    keys that it has."""
    if name := name_in(record, names):
        return name
    listed = ", ".join(dict.fromkeys(names))
    raise ValueError(
        f"no {what} among the keys {keys_of(record)}, expected {'one of ' if ',' in listed else ''}{listed}"
    )


def normal_name(field: str) -> str:
    """Returns the name of a column in small letters, words joined by underscores: ``Query-ID`` gives
    ``query_id``."""
    return field.strip().lower().replace("-", "_").replace(" ", "_")


def are_names(row: Sequence[str]) -> bool:
    """True if a row may be a header: each field is one word or two, or empty as above a column of row
    numbers."""
    return any(row) and all(not field or _COLUMN_NAME.fullmatch(field.strip()) for field in row)


def named_columns(
    row: Sequence[str], needed: Mapping[str, tuple[str, ...]], optional: Mapping[str, tuple[str, ...]]
) -> dict[str, int] | None:
    """Returns the columns that a header names, by role, in any order; None if the row is no header, or lacks
    a known name that is needed."""
    if not are_names(row):
        return None
    names = [normal_name(field) for field in row]
    roles = {**needed, **optional}
    columns: dict[str, int] = {}
    for role, known in roles.items():
        name = next(
            (name for name in known if name in names and names.index(name) not in columns.values()), None
        )
        if name is not None:
            columns[role] = names.index(name)
        elif role in needed:
            return None
    return columns


@dataclass(frozen=True, slots=True)
class TableForm:
    """Form of a file's rows, as its beginning shows it."""

    delimiter: str = "\t"
    is_quoted: bool = False
    """True for a csv file; otherwise quotes are text."""
    first: list[str] = field(default_factory=list)
    """Fields of the first row."""


def table_form(path: Path, *, commas: bool = False) -> TableForm:
    """Returns the form of a file's rows. With ``commas``, commas or semicolons may separate them without a
    header, too.

    Raises:
        InputError: an error of ``iter_lines``; wrong quotes in the first row of a csv file; a header that
        names a known column twice.
    """
    form = form_of(iter_lines(path), path, commas=commas)
    names = [normal_name(name) for name in form.first]
    for name in names:
        if names.count(name) > 1 and name in ALL_NAMES:
            raise InputError(
                f"the header names the column {name} twice", file=path, hint="rename or remove one of them"
            )
    return form


def table_rows(path: Path, form: TableForm) -> Iterator[tuple[int, list[str]]]:
    """Yields the fields of every row, with the line on which the row ends. Blank lines are skipped.

    Raises:
        InputError: wrong quotes in a csv file, or an error of ``iter_lines``.
    """
    return rows_of(iter_lines(path), form, path)


def rows_of(lines: Iterable[tuple[int, str]], form: TableForm, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields ``table_rows`` of numbered lines, counted from 1."""
    if not form.is_quoted:
        for line, text in lines:
            if text:
                yield line, text.split(form.delimiter)
        return
    csv.field_size_limit(MAX_LINE_BYTES)
    texts = ("\n" if line == 1 and _STATED.fullmatch(text) else f"{text}\n" for line, text in lines)
    reader = csv.reader(texts, delimiter=form.delimiter, strict=True)
    line = 0
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise InputError(
                f"the quotes of this row are not those of a csv file ({error})",
                file=path,
                line=line + 1,
                hint="double the quotes inside of quotes, or write the file as JSON lines",
            ) from None
        if row is None:
            return
        line = reader.line_num
        if row:
            yield line, row


def form_of(lines: Iterable[tuple[int, str]], path: Path, *, commas: bool = False) -> TableForm:
    """Returns the form of the rows that begin with these lines."""
    head: list[tuple[int, str]] = []
    left = _HEAD_CHARACTERS
    for line, text in lines:
        head.append((line, text))
        left -= len(text) + 1
        if left < 0:
            break
    texts = [text for _, text in head if text.strip()]
    if not texts:
        return TableForm()
    stated = _STATED.fullmatch(texts[0])
    if stated:
        delimiter = stated[1]
    else:
        delimiter = "\t" if "\t" in texts[0] else _delimiter(texts, commas=commas)
    is_quoted = delimiter != "\t" or _has_csv_quotes(texts)
    _, first = next(rows_of(head, TableForm(delimiter, is_quoted), path), (0, []))
    return TableForm(delimiter, is_quoted, first)


def _delimiter(texts: Sequence[str], *, commas: bool) -> str:
    """Returns the separator of lines whose first has no tab: the sign that splits the header. If two signs
    do, it is the one that gives more rows of equal length. Below a title, all rows must have equal length."""
    csv.field_size_limit(MAX_LINE_BYTES)
    found = "\t"
    most = False, 0, 0
    for sign in ",;":
        rows = list(csv.reader((text.replace("\r", " ") for text in texts), delimiter=sign))
        table = list(dropwhile(lambda row: len(row) < 2, rows))
        names = [normal_name(cell) for cell in rows[0]]
        count = sum(len(row) == len(table[0]) for row in table)
        is_table = commas or (are_names(names) and not ALL_NAMES.isdisjoint(names))
        if len(names) < 2:
            is_table = commas and 1 < count == len(table)
        size = len(names) > 1, count, max(map(len, rows))
        if is_table and size > most:
            found = sign
            most = size
    return found


def _has_csv_quotes(texts: Sequence[str]) -> bool:
    """True if a csv writer has put the quotes into these lines, which tabs separate."""
    if not any('\t"' in text or text.startswith('"') for text in texts):
        return False
    widths: set[int] = set()
    try:
        for row in csv.reader((f"{text}\n" for text in texts), delimiter="\t", strict=True):
            widths.add(len(row))
    except csv.Error as error:
        if str(error) != "unexpected end of data":  # the end may come after the first megabyte
            widths.clear()
    if len(widths) == 1 and not all(text.count("\t") + 1 in widths for text in texts):
        return True  # lines that are no rows by themselves form whole rows
    enclosed = [inner for text in texts for inner in _ENCLOSED.findall(text)]
    wrong = sum('"' in _ENCLOSED.sub("", text) for text in texts)  # or parts of a field of several lines
    is_column = 2 * len(enclosed) > len(texts) and len(enclosed) > 4 * wrong
    return not wrong or is_column or sum('"' in inner for inner in enclosed) > wrong


def wrong_columns(
    file: Path, line: int, row: Sequence[str], form: TableForm, expected: str, *, hint: str
) -> InputError:
    """Returns the error of a row with another number of columns; it names the delimiter."""
    hint = f"columns are separated by {_SEPARATORS[form.delimiter]}; {hint}"
    return InputError(f"{len(row)} columns", file=file, line=line, expected=expected, hint=hint)
