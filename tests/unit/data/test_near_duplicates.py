"""The search for near-duplicates agrees with comparing every pair."""

from __future__ import annotations

import random
import re
import string
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpr.data.near_duplicates import find_near_duplicates

words = st.text(alphabet=string.ascii_lowercase, min_size=1, max_size=8)
texts_of_ten = st.lists(words, min_size=10, max_size=40)


def members(text: str) -> set[object]:
    parts = re.findall(r"\w+", text.casefold())
    return {*parts, *pairwise(parts)}


def slowly(texts: list[str], threshold: float) -> list[int | None]:
    """Every text against every kept one."""
    result: list[int | None] = []
    for index, text in enumerate(texts):
        own = members(text)
        match = None
        for other in range(index):
            theirs = members(texts[other])
            if (
                result[other] is None
                and own | theirs
                and len(own & theirs) >= threshold * len(own | theirs) - 1e-9
            ):
                match = other
                break
        result.append(match)
    return result


@given(texts_of_ten, st.sampled_from([" ", "  ", "\n", ", ", ". ", " - "]))
@settings(max_examples=50, deadline=None)
def test_a_copy_with_other_spacing_punctuation_and_case_is_found(text: list[str], separator: str) -> None:
    assert find_near_duplicates([" ".join(text), separator.join(text).upper() + "!"]) == [None, 0]


@given(st.lists(words, min_size=10, max_size=40, unique=True), st.data())
@settings(max_examples=50, deadline=None)
def test_a_copy_with_one_word_changed_is_found(text: list[str], data: st.DataObject) -> None:
    changed = list(text)
    changed[data.draw(st.integers(0, len(text) - 1))] = "CHANGED0"
    filler = [
        "entirely different words stand in this sentence here",
        "and others yet again in that one over there",
    ]
    assert find_near_duplicates([" ".join(text), *filler, " ".join(changed)]) == [None, None, None, 0]


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.7, 1.0])
def test_agrees_with_comparing_every_pair(threshold: float) -> None:
    generator = random.Random(5)
    base = [
        [generator.choice("abcdefghijklmnop") for _ in range(generator.randint(1, 12))] for _ in range(40)
    ]
    texts = []
    for _ in range(300):
        text = list(generator.choice(base))
        for _ in range(generator.randint(0, 2)):
            text[generator.randrange(len(text))] = generator.choice("abcdefghijklmnop")
        texts.append(" ".join(text))
    expected = slowly(texts, threshold)
    assert 20 < sum(index is not None for index in expected) < 290
    assert find_near_duplicates(texts, threshold=threshold) == expected


def test_texts_without_words_are_kept_and_do_not_match_each_other() -> None:
    assert find_near_duplicates(["", "...", "", "a"]) == [None, None, None, None]
    assert find_near_duplicates([]) == []
