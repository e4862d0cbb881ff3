"""Why a passage was found: the words of the question that it has, and the part of its text around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dpr.indexer.bm25 import lexical_spans

EXCERPT = 320
"""Characters of the part of a text that is shown."""
_MOST_READ = 200_000
_SNAP = 30
Span = tuple[int, int, str]


class QuestionWords:
    """The words of a question, as BM25 counts them, and where a text has them.

    A text that is cut into pieces is a list of strings in which every second one, from index 1 on, is a word
    of the question.
    """

    def __init__(self, question: str) -> None:
        self._question = question[:_MOST_READ].lower()
        self._places: dict[str, tuple[int, int]] = {}
        for start, end, word in lexical_spans(self._question):
            self._places.setdefault(word, (start, end))

    def in_common(self, *texts: str) -> list[str]:
        """The words that any of the texts has, as the question writes them and in its order; those that
        overlap as one."""
        there = {word for text in texts for _, _, word in self._spans(text)}
        common: list[tuple[int, int]] = []
        for start, end in (place for word, place in self._places.items() if word in there):
            if common and start < common[-1][1]:
                common[-1] = common[-1][0], max(end, common[-1][1])
            else:
                common.append((start, end))
        return [self._question[start:end] for start, end in common]

    def pieces(self, text: str) -> list[str]:
        """All of a text."""
        return _cut(text, self._spans(text), 0, len(text))

    def excerpt(self, text: str, limit: int) -> list[str]:
        """The stretch of about ``limit`` characters with the most different words of the question, the first
        of several; where there is none, the beginning. White space becomes single spaces, and dots stand for
        what is left out."""
        flat = " ".join(text[:_MOST_READ].split())
        spans = list(self._spans(flat))
        start, end = 0, len(flat)
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
    """Start and end of the part to show of a text longer than ``limit``."""
    first, last = _densest(spans, limit)
    start = max(0, first - (limit - (last - first)) // 3)
    if start:
        sentence = text.rfind(". ", start, first)
        space = text.find(" ", start, min(first, start + _SNAP))
        start = sentence + 2 if sentence >= 0 else space + 1 if space >= 0 else start
    end = min(len(text), start + limit)
    if end < len(text):
        space = text.rfind(" ", max(last, end - _SNAP), end + 1)
        end = space if space > start else end
    return start, end


def _densest(spans: Sequence[Span], limit: int) -> tuple[int, int]:
    """Start and end of the words of the question that are to be seen together."""
    best, span = (0, 0), (0, 0)
    counts: Counter[str] = Counter()
    first = 0
    for start, end, word in spans:
        counts[word] += 1
        while first < len(spans) and end - spans[first][0] > limit and spans[first][0] < start:
            left = spans[first][2]
            counts[left] -= 1
            if not counts[left]:
                del counts[left]
            first += 1
        if (value := (len(counts), counts.total())) > best:
            best, span = value, (spans[first][0], min(end, spans[first][0] + limit))
    return span
