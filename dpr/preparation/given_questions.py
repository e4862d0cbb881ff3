"""Questions that a user has, each with its answer or with the file that answers it -> the passages that
answer them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.formats.corpora import is_json_name
from dpr.formats.delimited import form_of, rows_of
from dpr.formats.documents import (
    ANSWERS,
    QUESTIONS,
    Block,
    Section,
    column,
    decoded,
    one_line,
)
from dpr.formats.json_records import iter_json_objects
from dpr.preparation.passages import (
    GIVEN,
    Piece,
    QuestionPair,
    cut_section,
    passage_prefix,
    words_of,
)

logger = get_logger(__name__)

FILES = ("file", "document", "path", "source")
_COMPARED_WORDS = 30


class GivenRow(NamedTuple):
    """A question with its answer: a text, or a file of the folder."""

    question: str
    answer: str
    line: int


def read_given(path: Path) -> list[GivenRow]:
    """TSV, CSV or JSON lines. Columns are named by a header (question; answer or file), else they are the
    first two.

    Raises:
        InputError: a row without question or answer; names the file and line.
    """
    rows = []
    for line, names, cells in _records(path):
        texts = []
        for wanted in (QUESTIONS, ANSWERS + FILES):
            place = column(names, wanted)
            found = "" if place is None or place >= len(cells) else cells[place]
            if isinstance(found, list) and found:
                found = found[0]
            texts.append(one_line(found) if isinstance(found, str) else "")
        if not all(texts):
            raise InputError(
                "a row without question or answer",
                file=path,
                line=line,
                expected="a question and its answer, or a file",
            )
        rows.append(GivenRow(texts[0], texts[1], line))
    if not rows:
        raise InputError(
            "no rows", file=path, expected="questions with their answers, or with the files that answer them"
        )
    return rows


def _records(path: Path) -> Iterator[tuple[int, Sequence[str], Sequence[Any]]]:
    """Line, names and values of each row."""
    if is_json_name(path):
        for line, value in iter_json_objects(path):
            yield line, list(value), list(value.values())
        return
    lines = list(enumerate(decoded(path.read_bytes()).split("\n"), 1))
    form = form_of(lines, path, commas=True)
    names: Sequence[str] = form.first
    if column(names, QUESTIONS) is None or column(names, ANSWERS + FILES) is None:
        names = ("question", "answer")
    for line, row in rows_of(iter(lines), form, path):
        if row != names and any(cell.strip() for cell in row):
            yield line, names, row


def find_answers(
    rows: Sequence[GivenRow], pieces: Sequence[Piece], *, name: str, words: int, overlap: int
) -> tuple[list[QuestionPair], list[Piece]]:
    """The questions with the passages that answer them, and the passages that had to be added for answers
    that the folder does not hold.

    An answer is the name of a file (all of its passages answer), or a text: the passages that contain it,
    compared word by word over its first 30 words, else new passages under the name of the questions' file.
    """
    places = _places(pieces)
    texts = {row.answer for row in rows if row.answer.casefold() not in places}
    holders = _holders(texts, pieces)
    added: dict[str, list[Piece]] = {}
    prefix = passage_prefix(name)
    asked: list[QuestionPair] = []
    total = 0
    for row in rows:
        answering = places.get(row.answer.casefold()) or holders.get(row.answer) or added.get(row.answer)
        if not answering:
            made = cut_section(Section((), (Block(row.answer),), row.line), words=words, overlap=overlap)
            headings = ((-1, name),)
            answering = [
                replace(piece, id=f"{prefix}#{number}", file=name, headings=headings, asks_headings=False)
                for number, piece in enumerate(made, total + 1)
            ]
            total += len(answering)
            added[row.answer] = answering
        asked.append(QuestionPair(row.question, GIVEN, tuple(answering)))
    known = len(asked) - sum(one.pieces[0].file == name for one in asked)
    logger.info(
        "%d of %d questions are answered in the folder; the answers of the others become passages",
        known,
        len(asked),
    )
    return asked, [piece for group in added.values() for piece in group]


def _places(pieces: Sequence[Piece]) -> dict[str, list[Piece]]:
    """What an answer may name: files by path and, where only one has it, by name."""
    files: dict[str, list[Piece]] = {}
    for piece in pieces:
        files.setdefault(piece.file, []).append(piece)
    times = Counter(PurePosixPath(path).name for path in files)
    by_place: dict[str, list[Piece]] = {}
    for path, members in files.items():
        by_place[path.casefold()] = members
        name = PurePosixPath(path).name
        if times[name] == 1:
            by_place[name.casefold()] = members
    return by_place


def _holders(answers: Iterable[str], pieces: Sequence[Piece]) -> dict[str, list[Piece]]:
    """The passages that contain the first words of each answer."""
    texts = [f" {words_of(piece.passage().text)} " for piece in pieces]
    holders: dict[str, list[Piece]] = {}
    for answer in answers:
        first = f" {' '.join(words_of(answer).split()[:_COMPARED_WORDS])} "
        if first.strip():
            holders[answer] = [piece for piece, text in zip(pieces, texts, strict=True) if first in text]
    return holders
