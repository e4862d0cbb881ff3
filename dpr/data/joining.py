"""Title and text, tokenised apart, joined as the tokenizer joins a pair: special tokens added, cut
longest-first.

What the tokenizer puts before, between and after is learned from two examples; how it cuts is the rule of the
``tokenizers`` library. ``tests/unit/data/test_joining.py`` compares both with tokenizers of several kinds,
and a token store compares them with its own texts whenever it is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Segments = Sequence[int | None]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two sequences of these lengths are kept when ``room`` fit."""
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    longer = shorter if shorter > room else max(shorter, room - shorter)
    if shorter + longer > room:
        shorter = room // 2
        longer = room - shorter
    return (longer, shorter) if first > second else (shorter, longer)


@dataclass(frozen=True, slots=True)
class JoinRule:
    """The special tokens around one sequence and around a pair; ``cut_start`` where a tokenizer cuts from the
    left."""

    single: tuple[list[int], list[int]]
    pair: tuple[list[int], list[int], list[int]]
    cut_start: bool = False

    @classmethod
    def from_examples(
        cls, single: tuple[Sequence[int], Segments], pair: tuple[Sequence[int], Segments], *, cut_start: bool
    ) -> JoinRule | None:
        """Reads the rule off the token ids and segments (None: special) of a sequence and a pair; None where
        they show no such rule."""
        around_one, around_two = _specials(*single, count=1), _specials(*pair, count=2)
        if around_one is None or around_two is None:
            return None
        return cls((around_one[0], around_one[1]), (around_two[0], around_two[1], around_two[2]), cut_start)

    def join(self, title: Sequence[int] | None, text: Sequence[int], max_length: int) -> list[int]:
        """At most ``max_length`` tokens; ``title`` None: the text alone."""
        if title is None:
            before, after = self.single
            room = max(max_length - len(before) - len(after), 0)
            return [*before, *self._cut(text, min(len(text), room)), *after]
        before, between, after = self.pair
        room = max(max_length - len(before) - len(between) - len(after), 0)
        kept_title, kept_text = longest_first(len(title), len(text), room)
        return [*before, *self._cut(title, kept_title), *between, *self._cut(text, kept_text), *after]

    def crop(
        self,
        title: Sequence[int] | None,
        text: Sequence[int],
        max_length: int,
        generator: np.random.Generator,
        *,
        head: int = 0,
    ) -> list[int]:
        """As ``join``, with a random window of the text in place of its beginning; without a title its first
        ``head`` tokens stay. Of these, or of the title, at most half of what fits is kept."""
        room = max(max_length - sum(map(len, self.single if title is None else self.pair)), 0)
        first, rest = (text[:head], text[head:]) if title is None else (title, text)
        if len(first) + len(rest) > room:
            kept = min(len(first), room // 2)
            start = int(generator.integers(max(len(rest) - (room - kept), 0) + 1))
            window = slice(start, start + room - kept)
            title, text = (
                (None, [*first[:kept], *rest[window]]) if title is None else (first[:kept], rest[window])
            )
        return self.join(title, text, max_length)

    def _cut(self, tokens: Sequence[int], kept: int) -> Sequence[int]:
        return tokens[len(tokens) - kept :] if self.cut_start else tokens[:kept]


def _specials(tokens: Sequence[int], segments: Segments, *, count: int) -> list[list[int]] | None:
    """The special tokens before, between and after ``count`` consecutive sequences; None unless each has a
    token."""
    parts: list[list[int]] = [[]]
    seen: list[int] = []
    for token, segment in zip(tokens, segments, strict=True):
        if segment is None:
            parts[-1].append(token)
        elif segment not in seen:
            seen.append(segment)
            parts.append([])
        elif segment != seen[-1] or parts[-1]:
            return None
    return parts if seen == list(range(count)) else None
