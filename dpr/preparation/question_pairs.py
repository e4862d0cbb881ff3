"""Questions that documents hold without being asked: those of a FAQ, titles, headings, and first sentences.

Each comes with the passages that answer it and with what must be hidden from these, since a passage that
repeats its question word for word teaches nothing and measures nothing.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpr.core.records import Passage
from dpr.data.words import split_words
from dpr.preparation.passages import Piece

FAQ, TITLE, HEADING, SENTENCE, GIVEN = "faq", "title", "heading", "sentence", "given"
KINDS = (GIVEN, FAQ, HEADING, TITLE, SENTENCE)
"""The kinds of questions, those that resemble real ones most first."""
_WORD = re.compile(r"[^\W\d_]{2,}|\d+")
_NUMBERING = re.compile(r"^(?:\d+(?:\.\d+)*[.)]?|[A-Z][.)]|chapter \d+[.:]?|step \d+[.:]?)\s+", re.IGNORECASE)
_FIELD = re.compile(
    r"[*\w.]+ *(\([^)]*\))?\)*"
    r" *:|(args|arguments|parameters|returns?|attributes|examples?|notes?|todo|fixme)\b *:?$",
    re.I,
)
_HEADING_WORDS, _SENTENCE_WORDS, _MOST_WORDS, _PASSAGE_WORDS = 2, 4, 40, 12


@dataclass(frozen=True, slots=True)
class QuestionPair:
    """A question, and the passages that answer it, best first."""

    text: str
    kind: str
    pieces: tuple[Piece, ...]
    hidden_heading: int = 0
    """The heading that it was made of; 0 = none."""

    @property
    def hides_first(self) -> bool:
        """Whether it was made of the first sentence of its passage."""
        return self.kind == SENTENCE

    @property
    def file(self) -> str:
        return self.pieces[0].file

    def positive(self) -> Passage:
        """The best passage, without what the question was made of."""
        hidden = frozenset((self.hidden_heading,)) if self.hidden_heading else frozenset[int]()
        return self.pieces[0].passage(hidden, hide_first=self.hides_first)


def made_questions(pieces: Sequence[Piece]) -> list[QuestionPair]:
    """All questions that the passages hold, in the order of the passages; none is asked twice, however it is
    punctuated.

    A heading of one word is asked for together with the title ("numpy: installation").
    """
    under = sections_of(pieces)
    pairs: list[QuestionPair] = []
    for piece in pieces:
        if piece.place == 0:
            pairs += _of_headings(piece, under)
        if len(split_words(piece.rest, _WORD)) >= _PASSAGE_WORDS and _is_sentence(piece.first):
            pairs.append(QuestionPair(piece.first, SENTENCE, (piece,)))
    times = Counter(words_of(asked.text) for asked in pairs)
    return [asked for asked in pairs if times[words_of(asked.text)] == 1]


def sections_of(pieces: Iterable[Piece]) -> dict[int, list[Piece]]:
    """The passages directly under each heading, by its number."""
    under: dict[int, list[Piece]] = defaultdict(list)
    for piece in pieces:
        under[piece.headings[-1][0]].append(piece)
    return under


def without_questions(pieces: Sequence[Piece], held_out: Iterable[QuestionPair]) -> list[Passage]:
    """The corpus in which held-out questions are searched: their headings and first sentences are hidden
    wherever these stand."""
    asked = list(held_out)
    headings = frozenset(one.hidden_heading for one in asked if one.hidden_heading)
    first = {piece.id for one in asked if one.hides_first for piece in one.pieces}
    return [piece.passage(headings, hide_first=piece.id in first) for piece in pieces]


def one_for_each_passage(questions: Iterable[QuestionPair]) -> list[QuestionPair]:
    """At most one question of every passage: of the kind that resembles real ones most."""
    taken: set[str] = set()
    kept = []
    for asked in sorted(questions, key=lambda one: KINDS.index(one.kind)):
        if asked.kind == GIVEN or not taken & {piece.id for piece in asked.pieces}:
            kept.append(asked)
            taken |= {piece.id for piece in asked.pieces}
    return kept


def words_of(text: str) -> str:
    """A text reduced to its words, by which repetitions are found."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def _of_headings(piece: Piece, under: Mapping[int, Sequence[Piece]]) -> list[QuestionPair]:
    """The question of the section that the passage begins, and, where it begins the document, that of the
    title."""
    number, heading = piece.headings[-1]
    pieces = tuple(under[number])
    if sum(len(split_words(one.passage().text, _WORD)) for one in pieces) < _PASSAGE_WORDS:
        return []
    if piece.is_question:
        return (
            [QuestionPair(heading, FAQ, pieces, number)]
            if len(split_words(heading, _WORD)) >= _HEADING_WORDS
            else []
        )
    if not piece.asks_headings:
        return []
    text = _NUMBERING.sub("", heading).rstrip(":")
    size = len(split_words(text, _WORD))
    if len(piece.headings) == 1:
        return [QuestionPair(text, TITLE, pieces, number)] if _HEADING_WORDS < size <= _MOST_WORDS else []
    if size == 1:
        text = f"{piece.headings[0][1]}: {text}"
    return [QuestionPair(text, HEADING, pieces, number)] if 1 <= size <= _MOST_WORDS else []


def _is_sentence(text: str) -> bool:
    return _SENTENCE_WORDS <= len(split_words(text, _WORD)) <= _MOST_WORDS and not _FIELD.match(text)
