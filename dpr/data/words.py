"""Words of a text, also in scripts that are written without spaces; questions among texts by their words.

In Chinese, Japanese, Thai, Lao, Khmer, Burmese and similar scripts no space tells where a word ends, and
Korean joins endings to its words. There, each two neighbouring characters are a word, as in Lucene's analyser
of Chinese, Japanese and Korean; a character that stands alone is a word, too. That takes no dictionary, and
cuts questions and texts in the same way wherever their clauses begin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import mean, median
from typing import Any

import regex

from dpr.core.records import composed

WORDS_VERSION = 2
"""Version of this rule. Anything made with words of another version, such as a saved index, must not be
searched with these."""

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Line_Break=SA}\u30fc\uff70"
"""Line break class SA: Thai and its neighbours. The last two: long vowels of Japanese."""
_MARKS = r"[\p{M}\uff9e\uff9f]*"  # vowels and tones over and under Thai letters, voiced marks
_CHARACTER = regex.compile(rf"[{_UNSPACED}\p{{Hangul}}]{_MARKS}")
_STRETCH = regex.compile(rf"(?:{_CHARACTER.pattern})+")
_WITHOUT = re.compile(r"[\u0000-\u0dff\u1b00-\u2dff]*")
"""A text without any of these scripts. This test is three times as fast as looking for them."""
# \x1c: as ``re`` has it
_SPACED = re.compile(r"\S+")
_WRITTEN = regex.compile(rf"[{_UNSPACED}]{_MARKS}|[^\s\x1c-\x1f{_UNSPACED}]+")
_ASKS = re.compile(
    r"^\W*(who|whom|whose|what|which|when|where|why|how|is|are|was|were|do|does|did|can|could|should|would|has|have"
    r"|wer|wie|wo|wann|warum|welche[mnrs]?|qui|que|quand|quel(le)?s?|o\u00f9|comment|pourquoi|qu\u00e9|qui\u00e9n"
    r"|c\u00f3mo|cu\u00e1ndo|d\u00f3nde|cu\u00e1l|hoe|wat|waar|come|quando|dove|perch\u00e9|chi)\b"
    r"|[?\uff1f\u061f]\s*$",
    re.IGNORECASE,
)
"""A text that begins with a question word or ends with a question mark."""


def word_spans(text: str, spaced: Any, *, characters: bool = False) -> Iterator[tuple[int, int]]:
    """Yields start and end of each word of a text, in order. Words of two neighbouring characters overlap
    with the next.

    Args:
        spaced: the pattern of words of all other scripts.
        characters: also gives each character of such pairs, so that a question of a single character finds
        it.
    """
    start = 0
    for stretch in _STRETCH.finditer(text):
        for match in spaced.finditer(text, start, stretch.start()):
            yield match.span()
        found = [match.span() for match in _CHARACTER.finditer(text, *stretch.span())]
        for place, (begin, end) in enumerate(found):
            if characters or len(found) == 1:
                yield begin, end
            if place + 1 < len(found):
                yield begin, found[place + 1][1]
        start = stretch.end()
    for match in spaced.finditer(text, start):
        yield match.span()


def split_words(text: str, spaced: Any, *, characters: bool = False) -> list[str]:
    """Returns the words of a text, as ``word_spans`` finds them."""
    if _WITHOUT.fullmatch(text):
        return list(spaced.findall(text))
    return [text[start:end] for start, end in word_spans(text, spaced, characters=characters)]


def written_spans(text: str) -> list[tuple[int, int]]:
    """Returns start and end of everything between white space; in scripts without spaces, of each
    character."""
    return [match.span() for match in (_SPACED if text.isascii() else _WRITTEN).finditer(text)]


def joined(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Joins the words of a text at these places, with a space between two unless they touch in the text."""
    parts: list[str] = []
    for place, (start, end) in enumerate(spans):
        if place and start != spans[place - 1][1]:
            parts.append(" ")
        parts.append(text[start:end])
    return "".join(parts)


_WORD = re.compile(r"\w+")


def folded_words(text: str) -> list[str]:
    """Returns the words of a text in order, without their case."""
    return split_words(composed(text).casefold(), _WORD)


def words_of(text: str) -> frozenset[str]:
    """Returns the words of a text."""
    return frozenset(folded_words(text))


def look_swapped(questions: Sequence[str], passages: Sequence[str]) -> str:
    """Returns a sentence about it if the columns of questions and passages look swapped; else an empty text.

    They look swapped if questions are longer and passages ask more often, or if questions are eight times as
    long and mostly do not ask.
    """
    sides = (questions, passages)
    long, short = (median(len(written_spans(text)) for text in side) for side in sides)
    asked, asking = (mean(bool(_ASKS.search(text)) for text in side) for side in sides)
    if (long > short and asking > asked + 0.3) or (long > 8 * short and asked < 0.5):
        return f"questions and passages look swapped ({long:g} and {short:g} words in the median)"
    return ""
