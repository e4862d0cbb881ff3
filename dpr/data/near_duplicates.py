"""When two passages count as the same: equal except for case and spacing, or with nearly all words in common."""

from __future__ import annotations

import re

NEAR_DUPLICATE = 0.8
"""Share of the words of two texts that they have in common (Jaccard) from which they count as the same."""
_WORD = re.compile(r"\w+")


def plain(text: str) -> str:
    """A text without differences of case and spacing."""
    return " ".join(text.casefold().split())


def words_of(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(_WORD.findall(text.casefold()))


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Common members as a share of all; 0 for two empty sets."""
    common = len(first & second)
    return common / (len(first) + len(second) - common) if common else 0.0
