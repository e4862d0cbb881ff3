"""Conversion of documents into passages of bounded length.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import PurePosixPath

from dpr.core.records import MAX_ID_BYTES, Origin, Passage, text_sha256
from dpr.formats.documents.document import Block, Document, Section, name_as_words

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
    """True if the last heading is a real question."""
    asks_headings: bool = True
    """True if the headings are words that a user might ask for, not names of functions or pages."""

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
        first = sentences(group[0][1])[0] if starts_with_prose else ""
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


def sentences(text: str) -> list[str]:
    """Returns all sentences of a paragraph, in order; a single empty one if it holds nothing."""
    found = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        sentence = text[start : match.end()].strip()
        if not _ABBREVIATION.search(sentence):
            found.append(sentence)
            start = match.end()
    rest = text[start:].strip()
    return [*found, rest] if rest or not found else found
