"""Whatever token ids are written into a store come out of it, in parts of any size."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpr.core.records import PassageTokens, StoredPassage, StoreFacts
from dpr.formats.token_store import TokenPartWriter, TokenStore, finish_store, token_dtype
from dpr.storage.steps import Steps
from tests.helpers.examples import examples

METADATA: StoreFacts = {"kind": "token store", "prefix": "\N{SNOWMAN}", "rows": 1}
TOKENS = {
    bits: st.lists(st.integers(0, 2**bits - 1), max_size=6) | st.just(list(range(3000))) for bits in (16, 32)
}
WORD = st.integers(-(2**63), 2**63 - 1)


def passages(bits: int) -> st.SearchStrategy[PassageTokens]:
    return st.builds(
        PassageTokens, st.none() | TOKENS[bits], TOKENS[bits], st.tuples(WORD, WORD), st.booleans()
    )


@st.composite
def parts(draw: st.DrawFn, bits: int) -> list[Any]:
    """Parts of passages and rows; a row is its question and three lists of numbers of passages."""
    made = []
    for _ in range(draw(st.integers(1, 3))):
        listed = draw(st.lists(passages(bits), min_size=1, max_size=5))
        numbers = st.lists(st.integers(0, len(listed) - 1), max_size=4)
        made.append(
            (
                listed,
                draw(st.lists(st.tuples(TOKENS[bits], numbers, numbers, numbers), min_size=1, max_size=4)),
            )
        )
    return made


def plain(passage: PassageTokens) -> tuple[Any, ...]:
    title = None if passage.title is None else list(passage.title)
    return title, list(passage.text), tuple(passage.identity), passage.has_score


@pytest.mark.parametrize("bits", [16, 32])
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)

    @settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
    @given(made=parts(bits))
    def check(made: list[Any]) -> None:
        folder, ends = tmp_path_factory.mktemp("store"), []
        steps = Steps(folder, METADATA)
        for number, (listed, rows) in enumerate(made):
            writer = TokenPartWriter(token_dtype(2**bits - 1))
            assert [writer.add_passage(passage) for passage in listed] == list(range(len(listed)))
            for row in rows:
                writer.add_row(*row)
            writer.write(steps, number)
            ends.append((ends[-1] if ends else 0) + len(rows))
        finish_store(steps, ends)
        store = TokenStore(folder)
        expected = [
            (question, *([plain(listed[number]) for number in numbers] for numbers in lists))
            for listed, rows in made
            for question, *lists in rows
        ]
        assert len(store) == len(expected)
        for row in np.random.default_rng(0).permutation(len(expected)).tolist():
            sample = store[row]
            lists = (sample.positives, sample.hard_negatives, sample.other_negatives)
            assert (
                sample.question,
                *([plain(item.tokens()) for item in listed] for listed in lists),
            ) == expected[row]
            assert all(isinstance(item, StoredPassage) for listed in lists for item in listed)
        with pytest.raises(IndexError):
            store[len(expected)]

    check()


def finished(folder: Path, writer: TokenPartWriter, num_rows: int) -> None:
    """A store of one part."""
    steps = Steps(folder, METADATA)
    writer.write(steps, 0)
    finish_store(steps, [num_rows])


def test_rows_in_use_are_shared_and_then_let_go(tmp_path: Path) -> None:
    writer = TokenPartWriter(token_dtype(9))
    writer.add_row([1], [writer.add_passage(PassageTokens(None, [2], (0, 0), False))], [], [])
    finished(tmp_path, writer, 1)
    store = TokenStore(tmp_path)
    sample = store[0]
    assert store[0] is sample
    assert sample.positives[0].tokens() is store[0].positives[0].tokens()
    del sample
    assert not store._in_use


def test_scores_belong_to_the_slots_of_a_row(tmp_path: Path) -> None:
    writer = TokenPartWriter(token_dtype(9))
    passage = writer.add_passage(PassageTokens(None, [2], (0, 0), False))
    writer.add_row([1], [passage], [passage], [], scores=[0.5, float("nan")])
    writer.add_row([1], [passage], [], [passage])
    finished(tmp_path, writer, 2)
    first, second = TokenStore(tmp_path)[0], TokenStore(tmp_path)[1]
    assert [item.teacher_score for item in first.positives + first.hard_negatives] == [0.5, None]
    assert [item.teacher_score for item in second.positives + second.other_negatives] == [None, None]
