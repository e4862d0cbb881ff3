"""Conversion of documents into passages of bounded length, and questions that the documents hold without
being asked.

1. A passage never crosses a heading.
2. Paragraphs are added to a passage while it has at most ``words`` words. A paragraph longer than that is cut
   at sentence ends, a sentence longer than that between words.
3. A passage that continues a section repeats the last sentences of the one before it, as many as have at most
   ``overlap`` words together.
4. Its title is the path of headings, ``Document > Heading > Subheading``. Its id is the file's name, ``#``
   and a number.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import PurePosixPath

from dpr.core.records import MAX_ID_BYTES, Origin, Passage, composed, text_sha256
from dpr.data.words import split_words
from dpr.formats.documents.document import Block, Document, Section, name_as_words
from dpr.indexer.bm25 import lexical_tokens

SEPARATOR = " > "
_ROOM_FOR_NUMBER = 24
_SENTENCE_END = re.compile(r"[.!?](?=\s+[A-Z(\[\"'*<])")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|resp|approx|[A-Z])\.$")


@dataclass(frozen=True, slots=True)
class Piece:
    """A passage with separate parts, so that any of them can be hidden from a question that was made from
    it."""

    id: str
    file: str
    line: int
    headings: tuple[tuple[int, str], ...]
    """Title and headings, outermost first, each with a number that only this place of this file has."""
    overlap: str
    first: str
    """The first sentence, if the passage begins with prose."""
    rest: str
    place: int
    """Number of the passage in its section, counted from 0."""
    is_question: bool = False
    """True if the last heading is a question that somebody asked."""
    asks_headings: bool = True
    """True if the headings are words that somebody might ask for, not names of functions or pages."""

    def passage(self, hidden: frozenset[int] = frozenset(), *, hide_first: bool = False) -> Passage:
        """Returns the passage without the headings whose numbers are ``hidden`` and, with ``hide_first``,
        without its first sentence."""
        title = SEPARATOR.join(text for number, text in self.headings if number not in hidden)
        text = "\n".join(part for part in (self.overlap, "" if hide_first else self.first, self.rest) if part)
        heading = SEPARATOR.join(text for _, text in self.headings[1:])
        return Passage(text, title, self.id, origin=Origin(self.file, heading, self.line or None))


def cut(documents: Mapping[str, Document], *, words: int, overlap: int) -> Iterator[Piece]:
    """Yields the passages of all documents, which are given by their names, in order."""
    numbers = count(1)
    for name, document in documents.items():
        prefix = passage_prefix(name)
        title = document.title or name_as_words(PurePosixPath(name).stem)
        known: dict[tuple[str, ...], int] = {(): next(numbers)}
        place = count(1)
        for section in document.sections:
            paths = [section.headings[:depth] for depth in range(len(section.headings) + 1)]
            for path in paths:
                if path not in known:
                    known[path] = next(numbers)
            headings = tuple((known[path], path[-1] if path else title) for path in paths)
            for piece in cut_section(section, words=words, overlap=overlap):
                key, asks = f"{prefix}#{next(place)}", document.has_written_headings
                yield replace(piece, id=key, file=name, headings=headings, asks_headings=asks)


def passage_prefix(name: str) -> str:
    """Returns a file's name as the beginning of ids: without white space, and no longer than an id may be."""
    safe = re.sub(r"\s", lambda match: f"%{ord(match[0]):02X}", name)
    size = MAX_ID_BYTES - _ROOM_FOR_NUMBER
    if len(safe.encode()) > size:
        safe = safe.encode()[: size - 20].decode(errors="ignore") + "~" + text_sha256(name)[:16]
    return safe


def cut_section(section: Section, *, words: int, overlap: int) -> list[Piece]:
    """Returns the passages of one section, without ids and headings."""
    groups: list[list[tuple[int, str]]] = [[]]
    length = 0
    for number, text in _units(section.blocks, words):
        size = len(text.split())
        if groups[-1] and length + size > words:
            groups.append([])
            length = 0
        groups[-1].append((number, text))
        length += size
    pieces = []
    before = ""
    for index, group in enumerate(groups):
        text = group[0][1]
        for (last, _), (number, part) in pairwise(group):
            text += (" " if number == last else "\n") + part
        starts_with_prose = section.blocks[group[0][0]].is_prose
        first, _ = first_sentence(group[0][1]) if starts_with_prose else ("", "")
        rest = text[len(first) :].lstrip()
        repeated = _last_sentences(before, overlap)
        pieces.append(Piece("", "", section.line, (), repeated, first, rest, index, section.is_question))
        before = text
    return pieces


def _units(blocks: Sequence[Block], words: int) -> Iterator[tuple[int, str]]:
    """Yields the parts that a passage takes whole: paragraphs, or sentences of long ones, or parts of long
    sentences, each with its block's number."""
    for index, block in enumerate(blocks):
        if len(block.text.split()) <= words:
            yield index, block.text
            continue
        for sentence in sentences(block.text) if block.is_prose else [block.text]:
            parts = sentence.split()
            for start in range(0, len(parts), words):
                yield index, " ".join(parts[start : start + words])


def _last_sentences(text: str, words: int) -> str:
    taken: list[str] = []
    room = words
    for sentence in reversed(sentences(text.rpartition("\n")[2])):
        room -= len(sentence.split())
        if room < 0:
            break
        taken.insert(0, sentence)
    return " ".join(taken)


def first_sentence(text: str) -> tuple[str, str]:
    """Returns the first sentence, and the rest."""
    for end in _SENTENCE_END.finditer(text):
        if not _ABBREVIATION.search(text[: end.end()]):
            return text[: end.end()], text[end.end() :].strip()
    return text, ""


def sentences(text: str) -> list[str]:
    """Returns all sentences of a paragraph, in order."""
    found = []
    rest = text.strip()
    while rest:
        first, rest = first_sentence(rest)
        found.append(first)
    return found


FAQ = "faq"
TITLE = "title"
HEADING = "heading"
SENTENCE = "sentence"
GIVEN = "given"
KINDS = (GIVEN, FAQ, HEADING, TITLE, SENTENCE)
"""Kinds of questions; those that resemble real ones most come first."""
_WORD = re.compile(r"[^\W\d_]{2,}|\d+")
_NUMBERING = re.compile(r"^(?:\d+(?:\.\d+)*[.)]?|[A-Z][.)]|chapter \d+[.:]?|step \d+[.:]?)\s+", re.IGNORECASE)
_FIELD = re.compile(
    r"[*\w.]+ *(\([^)]*\))?\)*"
    r" *:|(args|arguments|parameters|returns?|attributes|examples?|notes?|todo|fixme)\b *:?$",
    re.I,
)
_REFERS = re.compile(
    r"(?:it|its|they|them|their|this|these|those|that|such|he|she|his|her|here|there|then|both|each|also"
    r"|otherwise|else|thus|hence|so|and|but|or|however|further|furthermore|moreover|therefore|similarly|in addition"
    r"|as a result|for example|for instance|the following|the same|the former|the latter)\b",
    re.IGNORECASE,
)
"""Pattern of the beginning of a sentence that nobody understands alone."""
_NO_WORD = re.compile(r"\W*-{1,2}\w.*|.*\w[=/\\_<>{}|@#:]+\w.*|\W*(?:\d.*|[b-hj-zB-HJ-Z])?\W*")
"""Pattern of text between spaces that is no word, in code and formulas."""
_MOST_NO_WORDS = 0.25
_HEADING_WORDS = 2
_SENTENCE_WORDS = range(4, 26)
_MOST_WORDS = 40
_PASSAGE_WORDS = 12


@dataclass(frozen=True, slots=True)
class QuestionPair:
    """A question, and the passages that answer it, best first."""

    text: str
    kind: str
    pieces: tuple[Piece, ...]
    hidden_heading: int = 0
    """Number of the heading that it was made from; 0 = none."""

    @property
    def hides_first(self) -> bool:
        """True if it was made from the first sentence of its passage."""
        return self.kind == SENTENCE

    @property
    def file(self) -> str:
        return self.pieces[0].file

    def positive(self) -> Passage:
        """Returns the best passage, without the part that the question was made from."""
        hidden = frozenset((self.hidden_heading,)) if self.hidden_heading else frozenset[int]()
        return self.pieces[0].passage(hidden, hide_first=self.hides_first)


def made_questions(pieces: Sequence[Piece]) -> list[QuestionPair]:
    """Returns all questions that the passages hold, in the order of the passages. None is asked twice,
    however it is punctuated.

    A heading of one word or two is asked for together with the title ("numpy: basic usage"). A sentence is no
    question if it needs the one before it, announces what follows it, or is code.
    """
    under: dict[int, list[Piece]] = defaultdict(list)  # the passages directly under each heading
    for piece in pieces:
        under[piece.headings[-1][0]].append(piece)
    pairs: list[QuestionPair] = []
    for piece in pieces:
        if piece.place == 0:
            pairs += _of_headings(piece, under)
        written = piece.first.split()
        is_sentence = (
            len(split_words(piece.first, _WORD)) in _SENTENCE_WORDS
            and not _FIELD.match(piece.first)
            and not _REFERS.match(piece.first)
            and not piece.first.endswith(":")
            and sum(bool(_NO_WORD.fullmatch(part)) for part in written) <= _MOST_NO_WORDS * len(written)
        )
        if is_sentence and len(split_words(piece.rest, _WORD)) >= _PASSAGE_WORDS:
            pairs.append(QuestionPair(piece.first, SENTENCE, (piece,)))
    times = Counter(words_of(asked.text) for asked in pairs)
    return [asked for asked in pairs if times[words_of(asked.text)] == 1]


def without_questions(pieces: Sequence[Piece], held_out: Iterable[QuestionPair]) -> list[Passage]:
    """Returns the corpus in which held-out questions are searched. Their headings and first sentences are
    hidden wherever these occur."""
    asked = list(held_out)
    headings = frozenset(one.hidden_heading for one in asked if one.hidden_heading)
    first = {piece.id for one in asked if one.hides_first for piece in one.pieces}
    return [piece.passage(headings, hide_first=piece.id in first) for piece in pieces]


def one_for_each_passage(questions: Iterable[QuestionPair]) -> list[QuestionPair]:
    """Returns at most one question of every passage, of the kind that resembles real ones most."""
    taken: set[str] = set()
    kept = []
    for asked in sorted(questions, key=lambda one: KINDS.index(one.kind)):
        if asked.kind == GIVEN or not taken & {piece.id for piece in asked.pieces}:
            kept.append(asked)
            taken |= {piece.id for piece in asked.pieces}
    return kept


def words_of(text: str) -> str:
    """Reduces a text to its words, by which repetitions are found."""
    return " ".join(re.findall(r"\w+", composed(text).casefold()))


def _of_headings(piece: Piece, under: Mapping[int, Sequence[Piece]]) -> list[QuestionPair]:
    """Returns the question of the section that the passage begins, and, if it begins the document, that of
    the title."""
    number, heading = piece.headings[-1]
    pieces = tuple(under[number])
    if sum(len(split_words(one.passage().text, _WORD)) for one in pieces) < _PASSAGE_WORDS:
        return []
    if piece.is_question:
        is_long = len(split_words(heading, _WORD)) >= _HEADING_WORDS
        return [QuestionPair(heading, FAQ, pieces, number)] if is_long else []
    if not piece.asks_headings:
        return []
    text = _NUMBERING.sub("", heading).rstrip(":")
    size = len(split_words(text, _WORD))
    if len(piece.headings) == 1:
        return [QuestionPair(text, TITLE, pieces, number)] if _HEADING_WORDS < size <= _MOST_WORDS else []
    if size and len(lexical_tokens(text)) <= _HEADING_WORDS:
        text = f"{piece.headings[0][1]}: {text}"
    return [QuestionPair(text, HEADING, pieces, number)] if 1 <= size <= _MOST_WORDS else []
