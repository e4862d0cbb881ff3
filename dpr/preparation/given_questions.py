"""Questions that users give with their answers, and the passages of a folder that answer them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from dpr.core.errors import InputError
from dpr.core.logs import counted, get_logger
from dpr.core.records import composed
from dpr.formats.documents.document import Block, Section, one_line
from dpr.formats.documents.plain_text import decoded
from dpr.formats.documents.tables import ANSWERS, QUESTIONS, column, written_rows
from dpr.formats.record_files import is_json_name, iter_json_objects
from dpr.preparation.document_questions import GIVEN, QuestionPair, words_of
from dpr.preparation.passages import Piece, cut_section, passage_prefix

logger = get_logger(__name__)


FILES = ("file", "document", "path", "source")
_COMPARED_WORDS = 30


class GivenRow(NamedTuple):
    """A question with its answer: a text, or a file of the folder."""

    question: str
    answer: str
    line: int


def read_given(path: Path) -> list[GivenRow]:
    """Reads TSV, CSV or JSON lines. A header names the columns (question; answer or file), else they are the
    first two.

    Raises:
        InputError: a row without question or answer; names the file and line.
    """
    rows = []
    expected = "a question and its answer, or the file that answers it"
    for line, names, cells in _records(path):
        texts = []
        for wanted in (QUESTIONS, ANSWERS + FILES):
            place = column(names, wanted)
            found = "" if place is None or place >= len(cells) else cells[place]
            if isinstance(found, list) and found:
                found = found[0]
            texts.append(one_line(found) if isinstance(found, str) else "")
        if not all(texts):
            raise InputError("a row without question or answer", file=path, line=line, expected=expected)
        rows.append(GivenRow(texts[0], texts[1], line))
    if not rows:
        raise InputError("no rows", file=path, expected=expected)
    return rows


def _records(path: Path) -> Iterator[tuple[int, Sequence[str], Sequence[Any]]]:
    """Yields line, names and values of each row."""
    if is_json_name(path):
        for line, value in iter_json_objects(path):
            yield line, list(value), list(value.values())
        return
    rows = written_rows(decoded(path.read_bytes()), path, commas=True)
    names: Sequence[str] = rows[0][1] if rows else ()
    if column(names, QUESTIONS) is None or column(names, ANSWERS + FILES) is None:
        names = ("question", "answer")
    for line, row in rows:
        if row != names:
            yield line, names, row


def find_answers(
    rows: Sequence[GivenRow], pieces: Sequence[Piece], *, name: str, words: int, overlap: int
) -> tuple[list[QuestionPair], list[Piece]]:
    """Returns the questions with the passages that answer them, and the passages that had to be added for
    answers that the folder does not hold.

    An answer is the name of a file (all of its passages answer), or a text: the passages that contain it,
    compared word by word over its first 30 words, else new passages under the name of the questions' file.
    """
    # Names that an answer may give: files by path and, if only one has it, by name.
    files: dict[str, list[Piece]] = {}
    for piece in pieces:
        files.setdefault(piece.file, []).append(piece)
    times = Counter(PurePosixPath(path).name for path in files)
    answering = {}
    for path, members in files.items():
        answering[composed(path).casefold()] = members
        if times[last := PurePosixPath(path).name] == 1:
            answering[composed(last).casefold()] = members

    texts = [f" {words_of(piece.passage().text)} " for piece in pieces]
    added: list[Piece] = []
    pairs: list[QuestionPair] = []
    for row in counted(rows, "looking for answers", unit="questions"):
        answer = row.answer if row.answer in answering else composed(row.answer).casefold()
        if answer not in answering:
            answer = row.answer
            first = f" {' '.join(words_of(answer).split()[:_COMPARED_WORDS])} "
            holders = [piece for piece, text in zip(pieces, texts, strict=True) if first in text]
            if not first.strip() or not holders:
                holders = []
                for piece in cut_section(
                    Section((), (Block(answer),), row.line), words=words, overlap=overlap
                ):
                    key = f"{passage_prefix(name)}#{len(added) + 1}"
                    added.append(
                        replace(piece, id=key, file=name, headings=((-1, name),), asks_headings=False)
                    )
                    holders.append(added[-1])
            answering[answer] = holders
        pairs.append(QuestionPair(row.question, GIVEN, tuple(answering[answer])))
    known = sum(one.file != name for one in pairs)
    message = "%d of %d questions are answered in the folder; the answers of the others become passages"
    logger.info(message, known, len(pairs))
    return pairs, added
