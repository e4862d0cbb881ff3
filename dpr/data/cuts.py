"""Cuts of passages into a question and a passage.

A cut names words by their numbers, so that it can be made from a text or from the tokens of a store, with the
same result. docs/without_labels.md explains each kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.settings import Rule, check_type, listed, suggestion

_CLOSING = "\"')]}\N{RIGHT DOUBLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}"
_ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f")
_ABBREVIATION = re.compile(r"\(?(e\.g|i\.e|etc|vs|cf|resp|approx|Dr|Mr|Mrs|Ms|St|No|Fig|[A-Za-z])\.")
_CROP_WORDS = (3, 12)
_KEPT = 0.1
"""Share of the pairs of a sentence and its passage whose passage keeps the sentence. Real questions repeat
words, too."""
_SHORTENED = 0.6
"""Share of the questions from which words are dropped."""


class Words(NamedTuple):
    """The words of a passage, by their numbers."""

    title: int
    """Number of words in its title."""
    text: int
    sentences: Sequence[int]
    """Numbers of the words of the text that begin its sentences."""


class Cut(NamedTuple):
    """A pair. Its question is either ``title``, words of the title, which is then removed from the passage,
    or ``question``, words of the text. ``passage`` are stretches of words of the text."""

    passage: list[tuple[int, int]]
    question: list[int]
    title: list[int] = []  # noqa: RUF012  a default that nobody changes


def words_of(title: Sequence[str], text: Sequence[str]) -> Words:
    """Returns the facts about a passage's words that a cut needs."""
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
    return Words(len(title), len(text), starts)


Maker = Callable[[Words, np.random.Generator], Cut]


def _crops(words: Words, generator: np.random.Generator) -> Cut:
    """Returns a few words as the question and a stretch of at least a third of the text as the passage; both
    anywhere."""
    asked = _stretch(words.text, *_CROP_WORDS, generator)
    return Cut([_stretch(words.text, -(-words.text // 3), words.text, generator)], list(range(*asked)))


def _sentence(words: Words, generator: np.random.Generator) -> Cut:
    """Returns a sentence as the question and the text around it as the passage (the inverse cloze task)."""
    number = int(generator.integers(len(words.sentences)))
    start, end = [*words.sentences, words.text][number : number + 2]
    around = [(0, words.text)] if generator.random() < _KEPT else [(0, start), (end, words.text)]
    return Cut(around, list(range(start, end)))


def _title(words: Words, generator: np.random.Generator) -> Cut:
    """Returns the title as the question and the text as the passage."""
    return Cut([(0, words.text)], [], list(range(words.title)))


KINDS: dict[str, tuple[Maker, Callable[[Words], bool]]] = {
    "crops": (_crops, lambda words: True),
    "sentence": (_sentence, lambda words: len(words.sentences) > 1),
    "title": (_title, lambda words: words.title > 0),
}
"""Kinds of pairs, each with its maker and a test of the passages that it can be made from."""
MIXED = {"crops": 0.5, "sentence": 0.35, "title": 0.15}
"""Weights of the kinds of pairs that a corpus is cut into by default."""


def kinds_of(given: Any, *, setting: str) -> dict[str, float]:
    """Returns the weights of the kinds that a setting names: ``mixed``, a name, a list of names, or names
    with weights.

    A name with a colon names a user-defined class (``dpr.PairMaker``).

    Raises:
        ConfigError: a name is not known, or a weight is not above 0.
    """
    if given == "mixed":
        return dict(MIXED)
    weights = dict(given) if isinstance(given, Mapping) else dict.fromkeys(listed(given), 1.0)
    for name, weight in weights.items():
        if name not in KINDS and ":" not in str(name):
            known = f"; choose one of mixed, {', '.join(KINDS)}, or module:Class"
            raise ConfigError(
                f"{setting}={name} is not a kind of pairs{suggestion(str(name), KINDS, otherwise=known)}"
            )
        check_type(f"{setting}.{name}", weight, float)
        Rule(above=0).check(f"{setting}.{name}", weight)
    if not weights:
        raise ConfigError(f"{setting} names no kind of pairs")
    return {name: float(weight) for name, weight in weights.items()}


def choose(kinds: Mapping[str, float], words: Words, generator: np.random.Generator) -> str:
    """Returns a kind that can be made from the passage, drawn by weight; ``crops`` if none can."""
    possible = {name: weight for name, weight in kinds.items() if name not in KINDS or KINDS[name][1](words)}
    drawn = generator.random() * sum(possible.values())
    for name, weight in possible.items():
        drawn -= weight
        if drawn < 0:
            return name
    return next(iter(possible), "crops")


def shortened(words: list[int], probability: float, generator: np.random.Generator) -> list[int]:
    """Returns the words of a question, some of them dropped unless fewer than two would stay."""
    if not probability or generator.random() >= _SHORTENED:
        return words
    draws = generator.random(len(words))
    kept = [word for word, draw in zip(words, draws, strict=True) if draw >= probability]
    return kept if len(kept) > 1 else words


def _stretch(size: int, least: int, most: int, generator: np.random.Generator) -> tuple[int, int]:
    """Returns start and end of a random stretch of ``least`` to ``most`` of ``size`` words."""
    length = int(generator.integers(min(least, size), min(most, size) + 1))
    start = int(generator.integers(size - length + 1))
    return start, start + length
