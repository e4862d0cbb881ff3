"""The part of a passage that is shown, and the words it shares with the question."""

import pytest

from dpr.retrieval.hits import QuestionWords

FILLER = "Nothing of this matters here at all. "


def test_words_are_found_as_bm25_counts_them() -> None:
    words = QuestionWords("How to read the CSV files of a caf\u00e9?")
    text = "FILE by file: reads ca\ufb01 and caf\u00e9, not the csvx"
    assert words.in_common(text) == ["read", "files", "caf\u00e9"], (
        "stop words are none, a final s does not count"
    )
    assert words.in_common("csv", text) == ["read", "csv", "files", "caf\u00e9"]
    pieces = words.pieces(text)
    assert "".join(pieces) == text
    assert pieces[1::2] == ["FILE", "file", "reads", "caf\u00e9"]


def test_characters_in_common_are_shown_as_one_word() -> None:
    words = QuestionWords("\u4e2d\u56fd\u7684\u9996\u90fd\u662f\u54ea\u91cc GPT\u6a21\u578b")
    text = "\u5317\u4eac\u662f\u4e2d\u56fd\u7684\u9996\u90fd, gpt"
    assert words.in_common(text) == ["\u4e2d\u56fd\u7684\u9996\u90fd", "gpt"]
    assert (
        words.pieces(text)[1::2] == ["\u4e2d\u56fd\u7684\u9996\u90fd", "gpt"]
        and "".join(words.pieces(text)) == text
    )
    assert QuestionWords("\u9996").pieces(text)[1::2] == ["\u9996"]


def test_the_excerpt_is_where_the_most_words_are() -> None:
    text = FILLER * 20 + "A csv comes first. " + FILLER * 20 + "Here you read a csv file. " + FILLER * 20
    pieces = QuestionWords("read csv file").excerpt(text, 200)
    assert pieces[1::2] == ["read", "csv", "file"]
    shown = "".join(pieces)
    assert 150 <= len(shown) <= 208
    assert shown.startswith("... ") and shown.endswith(" ...")
    assert shown[4:].startswith(("Here", "Nothing")), "at the beginning of a sentence"


@pytest.mark.parametrize("limit", [5, 30, 117, 400])
@pytest.mark.parametrize("question", ["read csv file", "zebra", "", "nothing all", "\u4f60\u597d"])
def test_an_excerpt_is_a_part_of_the_text_and_short(question: str, limit: int) -> None:
    for text in (
        "",
        "csv",
        "\u4f60\u597d" * 300,
        FILLER * 9 + "csv\n\nfile\tread " + FILLER * 9,
        "x" * 1000 + " csv",
    ):
        shown = "".join(QuestionWords(question).excerpt(text, limit))
        flat = " ".join(text.split())
        kept = shown.removeprefix("... ").removesuffix(" ...")
        assert kept in flat and len(kept) <= limit
        assert len(flat) > limit or shown == flat
        if question == "zebra" and text:
            assert flat.startswith(kept) and kept


def test_a_huge_passage_is_read_in_part() -> None:
    assert "".join(QuestionWords("csv").excerpt("word " * 1_000_000 + "csv", 50)).endswith(" ...")
