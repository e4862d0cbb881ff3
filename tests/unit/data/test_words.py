"""Where words begin and end in scripts with and without spaces."""

from __future__ import annotations

import pytest
import regex

from dpr.data.near_duplicates import jaccard
from dpr.data.words import joined, split_words, words_of, written_spans

LETTERS = regex.compile(r"[\p{L}\p{N}\p{M}]+")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("GPT\u6a21\u578b", "GPT \u6a21\u578b"),
        ("\u732b", "\u732b"),
        (
            "\u4e2d\u56fd\u7684\u9996\u90fd\u3002\u732b",
            "\u4e2d\u56fd \u56fd\u7684 \u7684\u9996 \u9996\u90fd \u732b",
        ),
        ("\u30b3\u30fc\u30d2\u30fc", "\u30b3\u30fc \u30fc\u30d2 \u30d2\u30fc"),
        ("\U00020000\U00020001\u5b57", "\U00020000\U00020001 \U00020001\u5b57"),
        # marks belong to their letter
        ("\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48 2563", "\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48 2563"),
        ("\u0ea5\u0eb2\u0ea7", "\u0ea5\u0eb2 \u0eb2\u0ea7"),
        ("\u1797\u17b6\u179f\u17b6", "\u1797\u17b6\u179f\u17b6"),
        ("\u1019\u103c\u1014\u103a\u1019\u102c", "\u1019\u103c\u1014\u103a \u1014\u103a\u1019\u102c"),
        ("\uc11c\uc6b8\uc740 \ubb3c", "\uc11c\uc6b8 \uc6b8\uc740 \ubb3c"),
        (
            "caf\u00e9 \u092e\u0947\u0902 \u041c\u0438\u0440 read_csv",
            "caf\u00e9 \u092e\u0947\u0902 \u041c\u0438\u0440 read csv",
        ),
    ],
)
def test_words(text: str, words: str) -> None:
    assert split_words(text, LETTERS) == words.split()


@pytest.mark.parametrize(
    "text",
    ["\u4e2d\u56fd\u7684 GPT\u6a21\u578b", "\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48 a", "some plain words"],
)
def test_words_are_put_together_as_they_were_written(text: str) -> None:
    spans = written_spans(text)
    assert len(spans) > 2 and joined(text, spans) == text
    assert " " in joined(text, [spans[0], spans[2]])


def test_repetitions_are_found_in_scripts_without_spaces() -> None:
    text = "\u957f\u6c5f\u662f\u4e9a\u6d32\u6700\u957f\u7684\u6cb3\u6d41\u5168\u957f\u516d\u5343\u591a\u516c\u91cc"
    assert jaccard(words_of(text), words_of(text[:-1])) > 0.9
    assert jaccard(words_of(text), words_of("\u957f\u57ce\u662f\u4e2d\u56fd\u7684\u53e4\u5efa\u7b51")) < 0.2
