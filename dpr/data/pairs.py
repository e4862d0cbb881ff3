"""Pairs cut from passages: which words become the question, and which are left as the passage that answers
it.

A cut names words by their numbers, so that it can be made of a text, or of the tokens of a store, with the
same result. What each kind makes, and what it teaches, is in docs/without_labels.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.settings import listed
from dpr.core.suggestions import suggestion

_CLOSING = "\"')]}\N{RIGHT DOUBLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}"
_ENDS, _ASKS = (".", "!", "?", "\u3002", "\uff01", "\uff1f"), ("?", "\uff1f")
_ABBREVIATION = re.compile(r"\(?(e\.g|i\.e|etc|vs|cf|resp|approx|Dr|Mr|Mrs|Ms|St|No|Fig|[A-Za-z])\.")
_PATH = ">"  # between the headings of a title
_CROP_WORDS = (3, 12)
_KEPT = 0.1
"""Share of the pairs of a sentence and its passage whose passage keeps the sentence: real questions repeat
words, too."""
_SHORTENED = 0.6
"""Share of the questions from which words are dropped."""


class Words(NamedTuple):
    """The words of a passage, by their numbers."""

    title: int
    """How many words its title has."""
    heading: int
    """The first word of the last heading, where the title is a path of headings."""
    text: int
    sentences: Sequence[int]
    """The words of the text with which its sentences begin."""
    questions: Sequence[int]
    """Which of the sentences are questions, the last one left out, since nothing answers it."""


class Cut(NamedTuple):
    """A pair. ``title`` are words of the title, or else ``question`` words of the text; ``passage`` are
    stretches of words of the text."""

    passage: list[tuple[int, int]]
    question: list[int]
    title: list[int] = []  # noqa: RUF012  a default that nobody changes
    keeps_title: bool = True


def words_of(title: Sequence[str], text: Sequence[str]) -> Words:
    """What a cut has to know of the words of a passage."""
    is_lower = not any(word[:1].isupper() for word in text)
    starts = [0] if text else []
    for number, (before, word) in enumerate(pairwise(text), 1):
        bare = before.rstrip(_CLOSING)
        if (
            bare.endswith(_ENDS)
            and (is_lower or not word[:1].islower())
            and not _ABBREVIATION.fullmatch(bare)
        ):
            starts.append(number)
    asked = [
        number
        for number, (_, end) in enumerate(pairwise(starts))
        if text[end - 1].rstrip(_CLOSING).endswith(_ASKS)
    ]
    heading = max((number for number, word in enumerate(title) if word == _PATH), default=-1) + 1
    return Words(len(title), heading if heading < len(title) else 0, len(text), starts, asked)


Maker = Callable[[Words, np.random.Generator], Cut]


def _crops(words: Words, generator: np.random.Generator) -> Cut:
    """A few words -> a stretch of a third of the text or more; both anywhere."""
    asked = _stretch(words.text, *_CROP_WORDS, generator)
    return Cut([_stretch(words.text, -(-words.text // 3), words.text, generator)], list(range(*asked)))


def _sentence(words: Words, generator: np.random.Generator) -> Cut:
    """A sentence -> the text around it (the inverse cloze task)."""
    number = int(generator.integers(len(words.sentences)))
    start, end = _sentence_at(words, number)
    around = [(0, words.text)] if generator.random() < _KEPT else [(0, start), (end, words.text)]
    return Cut(around, list(range(start, end)))


def _first(words: Words, generator: np.random.Generator) -> Cut:
    """The first sentence -> the rest."""
    start, end = _sentence_at(words, 0)
    return Cut([(end, words.text)], list(range(start, end)))


def _title(words: Words, generator: np.random.Generator) -> Cut:
    """The title -> the text."""
    return Cut([(0, words.text)], [], list(range(words.title)), keeps_title=False)


def _heading(words: Words, generator: np.random.Generator) -> Cut:
    """The last heading of a title that is a path of headings -> the text."""
    return Cut([(0, words.text)], [], list(range(words.heading, words.title)), keeps_title=False)


def _question(words: Words, generator: np.random.Generator) -> Cut:
    """A question that the text asks -> what follows it."""
    number = words.questions[int(generator.integers(len(words.questions)))]
    start, end = _sentence_at(words, number)
    return Cut([(end, words.text)], list(range(start, end)))


KINDS: dict[str, tuple[Maker, Callable[[Words], bool]]] = {
    "crops": (_crops, lambda words: True),
    "sentence": (_sentence, lambda words: len(words.sentences) > 1),
    "first": (_first, lambda words: len(words.sentences) > 1),
    "title": (_title, lambda words: words.title > 0),
    "heading": (_heading, lambda words: words.heading > 0),
    "question": (_question, lambda words: len(words.questions) > 0),
    "neighbours": (_crops, lambda words: True),
}
"""Each with the passages that it can be made of. ``neighbours`` cuts its passage from one beside, of the same
document."""
NEIGHBOURS = "neighbours"
MIXED = {"crops": 0.5, "sentence": 0.35, "title": 0.15}
"""What a corpus is cut into unless something else is asked for."""


def kinds_of(given: Any, *, setting: str) -> dict[str, float]:
    """The weights of the kinds that a setting names: ``mixed``, a name, a list of names, or names with
    weights.

    A name with a colon is that of a class of the user's (``dpr.PairMaker``).

    Raises:
        ConfigError: a name is not known, or a weight is not above 0.
    """
    if given == "mixed":
        return dict(MIXED)
    weights = dict(given) if isinstance(given, Mapping) else dict.fromkeys(listed(given), 1.0)
    for name, weight in weights.items():
        if not isinstance(name, str) or (name not in KINDS and ":" not in name):
            known = f"; choose of mixed, {', '.join(KINDS)}, or module:Class"
            raise ConfigError(
                f"{setting}={name} is not a kind of pairs{suggestion(str(name), KINDS, otherwise=known)}"
            )
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            raise ConfigError(f"{setting}.{name}={weight!r}, expected a number above 0")
    if not weights:
        raise ConfigError(f"{setting} names no kind of pairs")
    return {name: float(weight) for name, weight in weights.items()}


def choose(kinds: Mapping[str, float], words: Words, generator: np.random.Generator) -> str:
    """A kind that can be made of the passage, by weight; ``crops`` where none can."""
    possible = {name: weight for name, weight in kinds.items() if name not in KINDS or KINDS[name][1](words)}
    drawn = generator.random() * sum(possible.values())
    for name, weight in possible.items():
        drawn -= weight
        if drawn < 0:
            return name
    return next(iter(possible), "crops")


def shortened(words: list[int], probability: float, generator: np.random.Generator) -> list[int]:
    """The words of a question, some of them dropped: at most all but two."""
    if not probability or generator.random() >= _SHORTENED:
        return words
    kept = [
        word
        for word, draw in zip(words, generator.random(len(words)).tolist(), strict=True)
        if draw >= probability
    ]
    return kept if len(kept) > 1 else words


def _sentence_at(words: Words, number: int) -> tuple[int, int]:
    return words.sentences[number], [*words.sentences, words.text][number + 1]


def _stretch(size: int, least: int, most: int, generator: np.random.Generator) -> tuple[int, int]:
    """A stretch of ``least`` to ``most`` of ``size`` words."""
    length = int(generator.integers(min(least, size), min(most, size) + 1))
    start = int(generator.integers(size - length + 1))
    return start, start + length
