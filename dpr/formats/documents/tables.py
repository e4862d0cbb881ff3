"""Rows of tables as sections of a document."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path, PurePath

from dpr.core.errors import InputError
from dpr.formats.delimited import table_form, table_rows
from dpr.formats.documents.document import Block, Document, Section, one_line
from dpr.formats.record_fields import PASSAGE_IDS, QUESTION_IDS, normal_name

QUESTIONS = ("question", "query", "q", "prompt")
ANSWERS = ("answer", "answers", "response", "a", "passage", "reply")
_TITLES = ("title", "name", "heading", "subject", "topic")
_TEXTS = ("text", "body", "content", "description", "abstract", "summary", "passage", "answer")
_NAMES = (*QUESTIONS, *ANSWERS, *_TITLES, *_TEXTS)
_IDS = (*PASSAGE_IDS, *QUESTION_IDS)


def rows_as_sections(numbered: Sequence[tuple[int, Sequence[str]]]) -> list[Section]:
    """Returns a section for every row of a table, with the row's number. All cells of a row are in its text,
    including those beyond the header. The header, row numbers without a name and, beside texts, ids are left
    out.

    The header is the first row, or the first below the titles, which are rows of a single cell above wider
    ones. A title is a section of its own, and so is a row that stands alone.
    """
    rows = [(line, cells) for line, row in numbered if any(cells := list(map(one_line, row)))]
    num_narrow = sum(sum(map(bool, cells)) < 2 for _, cells in rows)
    num_titles = 0
    for _, (first, *others) in rows:
        if 2 * num_narrow > len(rows) or not first or any(others) or first.lower() in _NAMES:
            break
        num_titles += 1
    if num_titles + 1 >= len(rows):
        num_titles = len(rows)
    sections = [
        Section((), (Block(". ".join(filter(None, cells))),), line) for line, cells in rows[:num_titles]
    ]
    if num_titles == len(rows):
        return sections

    header = rows[num_titles][1]
    rows = rows[num_titles + 1 :]
    question = column(header, QUESTIONS)
    answer = column(header, ANSWERS)
    title = column(header, _TITLES)
    body = column(header, _TEXTS)
    is_faq = question is not None and answer is not None
    if is_faq:
        title = question
        body = answer
    elsewhere = set[int | None]()  # columns that are not written as "column: value"
    if body is not None:
        elsewhere = {title, body, *(place for place, name in enumerate(header) if normal_name(name) in _IDS)}
        if not header[0] and all(cells[0].isdigit() for _, cells in rows):
            elsewhere.add(0)
    for line, cells in rows:
        cells += [""] * (len(header) - len(cells))
        others = [
            f"{name}: {cell}" if name else cell
            for place, (name, cell) in enumerate(zip_longest(header, cells, fillvalue=""))
            if cell and place not in elsewhere
        ]
        text = "" if body is None else cells[body]
        headings = () if body is None or title is None or not cells[title] else (cells[title],)
        if not text:  # without a text, the headings become the text
            others = [*headings, *others]
            headings = ()
        parts = Block(text), Block(". ".join(others), is_prose=body is None)
        if blocks := tuple(block for block in parts if block.text):
            sections.append(Section(headings, blocks, line, is_faq and bool(headings)))
    return sections


def column(header: Sequence[str], names: Sequence[str]) -> int | None:
    """Returns the number of the first column with one of these names, trying the names in order."""
    lower = [name.strip().lower() for name in header]
    return next((lower.index(name) for name in names if name in lower), None)


def read_table(text: str, path: PurePath) -> Document:
    """Returns a section for every row of a CSV or TSV.

    Raises:
        InputError: the quoting is broken, or there is no row under the header.
    """
    rows = written_rows(text, Path(path), commas=path.suffix.lower() == ".csv")
    if len(rows) < 2:
        raise InputError("no row under the header")
    return Document("", tuple(rows_as_sections(rows)))


def written_rows(text: str, path: Path, *, commas: bool) -> list[tuple[int, list[str]]]:
    """Returns the rows of a CSV or TSV that are not empty, each with its line."""
    lines = list(enumerate(text.split("\n"), 1))
    rows = table_rows(path, table_form(path, lines, commas=commas), lines)
    return [(line, row) for line, row in rows if any(map(str.strip, row))]
