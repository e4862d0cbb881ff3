"""CSV and TSV with a header: a question and an answer in each row, a title and a text, or columns of any
names."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from dpr.core.errors import InputError
from dpr.formats.documents.document import Block, Document, Section, one_line
from dpr.formats.text_input import MAX_LINE_BYTES

QUESTIONS = ("question", "query", "q", "prompt")
ANSWERS = ("answer", "answers", "response", "a", "passage", "reply")
_TITLES = ("title", "name", "heading", "subject", "topic")
_TEXTS = ("text", "body", "content", "description", "abstract", "summary", "passage", "answer")


def read_table(text: str, *, delimiter: str) -> Document:
    """A section for every row. Rows without a recognised column are written as "column: value".

    Raises:
        InputError: the quoting is broken, or there is no row under the header.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        numbered = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise InputError(f"not a table: {error}", line=reader.line_num) from None
    return Document("", tuple(rows_as_sections(numbered)))


def rows_as_sections(numbered: Sequence[tuple[int, Sequence[str]]]) -> list[Section]:
    """A section for every row under the first, which is the header; each row with its number.

    Raises:
        InputError: there is no row under the header.
    """
    if len(numbered) < 2:
        raise InputError("no row under the header")
    header = [name.strip() for name in numbered[0][1]]
    question, answer = column(header, QUESTIONS), column(header, ANSWERS)
    title, body = column(header, _TITLES), column(header, _TEXTS)
    sections = []
    for line, row in numbered[1:]:
        cells = [one_line(cell) for cell in row] + [""] * (len(header) - len(row))
        if question is not None and answer is not None:
            headings, texts, is_question = (cells[question],), cells[answer].split("\n"), True
        elif body is not None:
            headings, texts, is_question = (cells[title] if title is not None else "",), [cells[body]], False
        else:
            named = [f"{name}: {cell}" for name, cell in zip(header, cells) if cell]
            headings, texts, is_question = ("",), [". ".join(named)], False
        blocks = tuple(Block(text) for text in texts if text)
        if blocks:
            sections.append(
                Section(tuple(filter(None, headings)), blocks, line, is_question and bool(headings[0]))
            )
    return sections


def column(header: Sequence[str], names: Sequence[str]) -> int | None:
    """The number of the first column with one of these names, the first name first."""
    lower = [name.strip().lower() for name in header]
    return next((lower.index(name) for name in names if name in lower), None)
