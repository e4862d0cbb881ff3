"""Near-duplicates among texts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dpr.core.logs import counted
from dpr.data.words import folded_words

NEAR_DUPLICATE = 0.8
"""Share of common words (Jaccard) from which two texts count as the same."""


def jaccard(first: frozenset[Any], second: frozenset[Any]) -> float:
    """Returns the common members as a share of all; 0 for two empty sets."""
    common = len(first & second)
    return common / (len(first) + len(second) - common) if common else 0.0


def resembles(words: frozenset[str], others: Iterable[frozenset[str]]) -> bool:
    """True if one of the other texts, each given by its words, counts as the same."""
    for other in others:
        smaller, larger = sorted((len(words), len(other)))
        # They have no more in common than the shorter one contains, so counting rules most pairs out.
        if smaller and smaller / larger >= NEAR_DUPLICATE and jaccard(words, other) >= NEAR_DUPLICATE:
            return True
    return False


def find_near_duplicates(texts: Sequence[str], *, threshold: float = 0.6) -> list[int | None]:
    """Returns, for each text, the index of the earliest kept text that it nearly repeats, or ``None`` if it
    is kept itself.

    A text is seen as the set of its words and word pairs; two texts are near-duplicates when the Jaccard
    similarity of their sets reaches ``threshold``, above 0. The search is exact, not sampled: two such sets
    must share one of their rarest members (prefix filtering as in Bayardo, Ma and Srikant, "Scaling up all
    pairs similarity search", WWW 2007), so a text is compared only with the kept ones that share a member of
    its prefix, the ``n - ceil(threshold * n) + 1`` rarest of its ``n`` members. Copies never enter the
    register, so a thousand copies cost a thousand comparisons, not a million.

    A text of ten or more words with one word changed is always found at the default threshold. Texts without
    any word are kept.
    """
    original: list[int | None] = []
    register: defaultdict[int, list[int]] = defaultdict(list)
    kept: dict[int, frozenset[int]] = {}
    all_members = counted(_members_from_rare_to_common(texts), "looking for near-duplicates", unit="texts")
    for index, members in enumerate(all_members):
        own = frozenset(members)
        # The small number: 0.7 * 10 is a little above 7, and a prefix one too short would miss a pair exactly
        # at the threshold.
        prefix = members[: len(members) - math.ceil(threshold * len(members) - 1e-9) + 1]
        candidates = {other for member in prefix for other in register.get(member, ())}
        match = min(
            (other for other in candidates if jaccard(own, kept[other]) >= threshold - 1e-9), default=None
        )
        original.append(match)
        if match is None:
            kept[index] = own
            for member in prefix:
                register[member].append(index)
    return original


def _members_from_rare_to_common(texts: Sequence[str]) -> list[list[int]]:
    """Returns the set of each text. Its members are numbers that grow with the number of texts they occur
    in."""
    numbers: dict[str | tuple[str, str], int] = {}
    sets = []
    for text in counted(texts, "splitting texts into words", unit="texts"):
        words = folded_words(text)
        found: list[str | tuple[str, str]] = [*words, *pairwise(words)]
        sets.append(np.unique([numbers.setdefault(member, len(numbers)) for member in found]))
    counts = np.zeros(len(numbers), dtype=np.int64)
    for members in sets:
        counts[members.astype(np.int64)] += 1
    rank = np.empty_like(counts)
    rank[np.argsort(counts, kind="stable")] = np.arange(len(counts))
    return [np.sort(rank[members.astype(np.int64)]).tolist() for members in sets]
