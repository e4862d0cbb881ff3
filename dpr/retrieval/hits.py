"""Results of a search of ``dpr.Retriever``, and the part of a text that contains the words of the question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from dpr.core.records import Origin, Passage
from dpr.indexer.bm25 import lexical_spans

EXCERPT = 320
"""Length of the shown part of a text in characters."""
_MOST_READ = 200_000
Span = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Rank and score of a passage on one side of a search; rank 1 is the first."""

    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found, rank 1 first. Title and text are empty if the corpus lacks the passage."""

    rank: int
    score: float
    """``dense``: inner product or cosine of the vectors; ``bm25``: BM25's score, unbounded. In a hybrid, 0 to
    1 relative to the passages listed for this question, so scores of different questions cannot be compared.
    """
    passage: Passage
    sides: Mapping[str, Place | None] = field(default_factory=dict)
    """Rank and score of the passage on the searched sides, ``dense`` and ``bm25``; None if a side does not
    list it."""
    file: Path | None = None
    """File of the corpus, if it is a single one."""

    @property
    def id(self) -> str:
        return str(self.passage.id)

    @property
    def title(self) -> str:
        return self.passage.title

    @property
    def text(self) -> str:
        return self.passage.text

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Returns the fields of the passage besides id, title and text."""
        return self.passage.metadata or {}

    @property
    def origin(self) -> Origin | None:
        """Returns the document that the passage was taken from, if its corpus states it."""
        return self.passage.origin

    @property
    def dense(self) -> float | None:
        """Returns the score by vectors; None if they were not searched, or do not list the passage."""
        return place.score if (place := self.sides.get("dense")) else None

    @property
    def bm25(self) -> float | None:
        """Returns the score by words; None as for ``dense``."""
        return place.score if (place := self.sides.get("bm25")) else None


NO_ANSWER = "no passage seems to answer this question; nearest passages:"
LEAST_SHARE = 0.2
"""Share of the highest possible score of BM25 (``Bm25Index.share``) that the best passage nearly always
reaches if the corpus answers the question: benchmarks/results/search_floor.md."""


class Hits(list[Hit]):
    """Hits of a question, best first.

    ``seems_unanswered`` is True if even the best passage by words shares so few words with the question that
    probably no passage answers it. It is always False if words were not searched.
    """

    seems_unanswered = False

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question


class QuestionWords:
    """Words of a question, as BM25 counts them, and their places in a text.

    A text cut into pieces is a list of strings in which every second one, starting at index 1, is a word of
    the question.
    """

    def __init__(self, question: str) -> None:
        self._question = question[:_MOST_READ].lower()
        self._places: dict[str, tuple[int, int]] = {}
        for start, end, word in lexical_spans(self._question):
            self._places.setdefault(word, (start, end))

    def in_common(self, *texts: str) -> list[str]:
        """Returns the words that occur in any of the texts, in the spelling and order of the question;
        overlapping words count as one."""
        there = {word for text in texts for _, _, word in self._spans(text)}
        common: list[tuple[int, int]] = []
        for start, end in (place for word, place in self._places.items() if word in there):
            if common and start < common[-1][1]:
                common[-1] = common[-1][0], max(end, common[-1][1])
            else:
                common.append((start, end))
        return [self._question[start:end] for start, end in common]

    def pieces(self, text: str) -> list[str]:
        """Returns the whole text, cut into pieces."""
        return _cut(text, self._spans(text), 0, len(text))

    def excerpt(self, text: str, limit: int) -> list[str]:
        """Returns the stretch of about ``limit`` characters with the most different words of the question,
        the first of several; without such words, the beginning. White space becomes single spaces, and dots
        stand for text that is left out."""
        flat = " ".join(text[:_MOST_READ].split())
        spans = list(self._spans(flat))
        start = 0
        end = len(flat)
        if len(flat) > limit:
            start, end = _stretch(flat, spans, limit)
        pieces = _cut(flat, spans, start, end)
        if start:
            pieces[0] = "... " + pieces[0]
        if end < len(flat) or len(text) > _MOST_READ:
            pieces[-1] = pieces[-1].rstrip() + " ..."
        return pieces

    def _spans(self, text: str) -> Iterator[Span]:
        return (span for span in lexical_spans(text[:_MOST_READ], is_passage=True) if span[2] in self._places)


def _cut(text: str, spans: Iterator[Span] | Sequence[Span], start: int, end: int) -> list[str]:
    pieces: list[str] = []
    at = start
    for first, last, _ in spans:
        if last > end or last <= at or (first < at and not pieces):
            continue
        if first < at:  # overlaps with the word before
            pieces[-1] += text[at:last]
        else:
            pieces += [text[at:first], text[first:last]]
        at = last
    return [*pieces, text[at:end]]


def _stretch(text: str, spans: Sequence[Span], limit: int) -> tuple[int, int]:
    """Returns start and end of the part to show of a text longer than ``limit``."""
    most = 0
    first = 0
    last = 0
    for number, (start, _, _) in enumerate(spans):
        words: set[str] = set()
        reached = start
        for _, end, word in islice(spans, number, None):
            if end - start > limit:
                break
            words.add(word)
            reached = max(reached, end)
        if len(words) > most:
            most = len(words)
            first = start
            last = reached
    start = max(0, first - (limit - (last - first)) // 3)
    if start:
        sentence = text.rfind(". ", start, first)
        start = sentence + 2 if sentence >= 0 else text.find(" ", start, first) + 1 or start
    end = min(len(text), start + limit)
    if end < len(text):
        space = text.rfind(" ", max(last, start + 1), end + 1)
        end = space if space >= 0 else end
    return start, end
