"""A document as headings and the text below them; every reader makes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

_ASKED = re.compile(r"(?:Q|Question|Frage)\s?\d*\s?[:.)]\s+(?P<text>.+\?)", re.IGNORECASE)
_ANSWERED = re.compile(r"(?:A|Answer|Antwort)\s?\d*\s?[:.)]\s+", re.IGNORECASE)
BELOW_ALL = 7
"""Level of a heading that every other one ends: a question in a list of questions, a defined term."""
_PERMALINK = "\u00b6 "
"""Ending of headings in pages written by Sphinx: a link to itself."""


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph (prose), or a list item, table row or piece of code (not prose)."""

    text: str
    is_prose: bool = True


@dataclass(frozen=True, slots=True)
class Section:
    """Text between one heading and the next. ``headings`` are the headings above it, outermost first, without
    the title."""

    headings: tuple[str, ...]
    blocks: tuple[Block, ...]
    line: int = 0
    """Line at which it begins, counted from 1 (a page of a PDF, a row of a table); 0 = unknown."""
    is_question: bool = False
    """True if the last heading is a real question, and the blocks answer it."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document as sections. ``title`` is empty if the text states none."""

    title: str
    sections: tuple[Section, ...]
    has_written_headings: bool = True
    """False if headings are names, such as those of functions or pages, that no user asks for."""


class DocumentBuilder:
    """Collects headings and blocks in the order of the text."""

    def __init__(self) -> None:
        self._title = ""
        """A first heading without text below it."""
        self._open: list[tuple[int, str]] = []
        self._blocks: list[Block] = []
        self._line = 1
        self._sections: list[tuple[tuple[tuple[int, str], ...], tuple[Block, ...], int]] = []

    def heading(self, level: int, text: str, line: int = 0) -> None:
        """Ends the section before, and all headings of this level and below."""
        self._end_section()
        text = one_line(text).rstrip(_PERMALINK)
        if not self._sections and self._open and level <= self._open[0][0]:
            self._title = self._title or self._open[0][1]
        self._open = [entry for entry in self._open if entry[0] < level] + ([(level, text)] if text else [])
        self._line = line

    def add(self, text: str, *, is_prose: bool = True, line: int = 0) -> None:
        """Adds a block. ``Q: ...?`` opens a section of its own, and ``A:`` in front of the answer is left
        out."""
        text = one_line(text)
        if asked := _ASKED.fullmatch(text):
            self.heading(BELOW_ALL, asked["text"], line)
            return
        if not self._blocks and self._open and self._open[-1][1].endswith("?"):
            text = _ANSWERED.sub("", text, count=1) if _ANSWERED.match(text) else text
        if text:
            self._blocks.append(Block(text, is_prose))

    def finish(self, title: str = "") -> Document:
        """Returns the document. Without a title, the outermost heading becomes the title if there is only one
        and the text begins with it."""
        self._end_section()
        title = one_line(title) or self._title
        outermost = {headings[:1] for headings, _, _ in self._sections}
        drop = 0
        if len(outermost) == 1 and (first := outermost.pop()):
            drop = 1 if title in ("", first[0][1]) else 0
            title = title or first[0][1]
        sections = []
        for headings, blocks, line in self._sections:
            texts = tuple(text for _, text in headings[drop:])
            is_question = bool(texts) and texts[-1].endswith("?")
            sections.append(Section(texts, blocks, line, is_question))
        return Document(title, tuple(sections))

    def _end_section(self) -> None:
        if self._blocks:
            self._sections.append((tuple(self._open), tuple(self._blocks), self._line))
        self._blocks = []


def one_line(text: str) -> str:
    """Replaces white space and characters that cannot be printed by single spaces."""
    text = " ".join(text.split())
    if not text.isprintable():
        text = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return text


def paragraphs(lines: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Returns runs of lines that are not blank, each with the number of its first line, counted from 1."""
    blocks = []
    for has_text, group in groupby(enumerate(lines, 1), key=lambda item: bool(item[1].strip())):
        if has_text:
            numbers, texts = zip(*group, strict=True)
            blocks.append((numbers[0], list(texts)))
    return blocks


def name_as_words(name: str) -> str:
    """Splits a name into words: ``pandas.io.parsers.TextFileReader.get_chunk`` gives ``pandas io parsers Text
    File Reader get chunk``."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return " ".join(re.split(r"[\W_]+", apart)).strip()
