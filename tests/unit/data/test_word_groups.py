"""Words, near-duplicates by their words, and features that group rows by words."""

import json
import os
import random
import re
import string
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from dpr.core.records import Passage, TrainingSample
from dpr.data.near_duplicates import find_near_duplicates, jaccard
from dpr.data.pairs import PseudoPairs
from dpr.data.row_words import row_words
from dpr.data.training_data import TrainingData
from dpr.data.words import joined, split_words, words_of, written_spans

ROWS = [
    ("what causes dry mouth", "dry mouth may be caused by medicines", "Mouth"),
    ("how is dry mouth treated", "chew gum to treat a dry mouth", "Mouth"),
    ("what causes gout", "gout may be caused by uric acid", "Gout"),
    ("how is gout treated", "drink water to treat gout", "Gout"),
    ("which acid", "gout may be caused by uric acid", "Gout"),
    ("", "", ""),
    *((f"what causes thing{number}", f"thing{number} may be caused by", "Thing") for number in range(20)),
    *((f"how is thing{number} treated", f"it is to treat thing{number}", "Thing") for number in range(20)),
]


class Rows(TrainingData):
    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, row: int) -> TrainingSample:
        question, text, title = ROWS[row]
        return TrainingSample(question, (Passage(text, title), Passage("another")))


def test_rows_that_share_rare_words_are_near() -> None:
    vectors = row_words(Rows())["vector"].astype(np.int64)
    cosines = vectors @ vectors.T / 4080**2
    assert np.allclose(np.diag(cosines)[:5], 1, atol=0.01) and not vectors[5].any()
    related = [cosines[pair] for pair in ((0, 1), (2, 3), (2, 4))]
    others = [cosines[pair] for pair in ((0, 2), (0, 3), (1, 2), (1, 3))]
    assert min(related) > max(others) + 0.05


def test_rows_have_one_number_where_they_have_one_positive() -> None:
    positives = row_words(Rows())["positive"].tolist()
    assert positives[2] == positives[4] and len(set(positives)) == len(ROWS) - 1


def test_products_are_exact_in_float32_in_any_order() -> None:
    vectors = row_words(Rows())["vector"]
    assert np.sqrt(np.square(vectors.astype(np.int64)).sum(1)).max() <= 4095
    longest = np.full((1, 512), 180, dtype=np.int64)  # 4,073 long, every partial sum as large as it can be
    for one in (vectors.astype(np.int64), longest):
        exact = one @ one.T
        for order in (slice(None), slice(None, None, -1), np.random.default_rng(0).permutation(512)):
            assert (one[:, order].astype(np.float32) @ one[:, order].astype(np.float32).T == exact).all()


def test_another_process_that_orders_sets_of_words_otherwise_finds_the_same() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_word_groups as t,"
        " dpr.data.row_words as w; sys.stdout.buffer.write(w.row_words(t.Rows()).tobytes())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert found.stdout == row_words(Rows()).tobytes()


def test_pairs_of_one_document_count_as_having_one_positive(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    texts = [f"word{row} other{row} more of it {row}" for row in range(40)]
    rows = [{"_id": str(row), "title": f"title {row // 2}", "text": text} for row, text in enumerate(texts)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    positives = row_words(PseudoPairs(file))["positive"]
    assert len(set(positives.tolist())) == 20 and (positives[::2] == positives[1::2]).all()


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
    filler = ["entirely different words stand in this sentence", "and others yet again in that one"]
    assert find_near_duplicates([" ".join(text), *filler, " ".join(changed)]) == [None, None, None, 0]


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.7, 1.0])
def test_agrees_with_comparing_every_pair(threshold: float) -> None:
    generator = random.Random(5)
    letters = "abcdefghijklmnop"
    base = [generator.choices(letters, k=generator.randint(1, 12)) for _ in range(40)]
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


LETTERS = regex.compile(r"[\p{L}\p{N}\p{M}]+")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("GPT\u6a21\u578b", "GPT \u6a21\u578b"),
        ("\u732b", "\u732b"),
        ("\u4e2d\u56fd\u7684\u9996\u3002\u732b", "\u4e2d\u56fd \u56fd\u7684 \u7684\u9996 \u732b"),
        ("\u30b3\u30fc\u30d2\u30fc", "\u30b3\u30fc \u30fc\u30d2 \u30d2\u30fc"),
        ("\U00020000\U00020001\u5b57", "\U00020000\U00020001 \U00020001\u5b57"),
        # marks belong to their letter
        ("\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48 2563", "\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48 2563"),
        ("\u0ea5\u0eb2\u0ea7", "\u0ea5\u0eb2 \u0eb2\u0ea7"),
        ("\u1019\u103c\u1014\u103a\u1019\u102c", "\u1019\u103c\u1014\u103a \u1014\u103a\u1019\u102c"),
        ("\uc11c\uc6b8\uc740 \ubb3c", "\uc11c\uc6b8 \uc6b8\uc740 \ubb3c"),
        ("caf\u00e9 \u092e\u0947\u0902 read_csv", "caf\u00e9 \u092e\u0947\u0902 read csv"),
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
