"""Indexes whose passages come and go find, bit for bit, what an index of the present passages finds."""

import random
from typing import Any

import numpy as np

from dpr.core.records import Passage
from dpr.formats.arrays import ArraySource
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.exact import ExactIndex
from dpr.indexer.living_vectors import LivingVectors
from dpr.indexer.living_words import LivingWords
from dpr.indexer.ranking import encode_ids
from dpr.indexer.registry import IndexTexts

RNG = random.Random(0)
WORDS = [f"w{number}" for number in range(300)]
VECTORS = np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32)


def text() -> str:
    return " ".join(RNG.choices(WORDS, weights=[1 / (n + 1) for n in range(300)], k=RNG.randint(3, 40)))


def words(passages: dict[str, Passage]) -> Bm25Index:
    return Bm25Index.build(
        IndexTexts(list(passages), (f"{one.title} {one.text}" for one in passages.values()))
    )


def vectors(rows: dict[str, np.ndarray]) -> ExactIndex:
    return ExactIndex([ArraySource(encode_ids(list(rows)), np.array(list(rows.values())))])


def assert_same(living: Any, fresh: Any, questions: Any, ids: np.ndarray) -> None:
    assert living.num_passages == fresh.num_passages
    for ours, theirs in ((living, fresh), (living.among(ids), fresh.among(ids))):
        for k in (1, 20, 1000):
            (scores, found), (expected, those) = ours.search(questions, k), theirs.search(questions, k)
            assert found == those and np.array_equal(scores, expected)


def test_changed_indexes_equal_those_of_the_present_passages() -> None:
    passages = {f"p{number}": Passage(text(), f"t{number % 7}", f"p{number}") for number in range(300)}
    passages["p0"] = Passage("", "", "p0")
    rows = dict(zip(passages, VECTORS, strict=False))
    by_words = LivingWords(words(passages))
    beside, alone = LivingVectors(vectors(rows), 16), LivingVectors(None, 16)
    alone.change({}, passages, VECTORS[:300])
    for step in range(400):
        gone, added = [], []
        if (
            RNG.random() < 0.6 or step < 40
        ):  # first the best of one question, more than are looked at beforehand
            key = RNG.choice(list(passages))
            if step < 40:
                key = max(passages, key=lambda one: float(rows[one] @ VECTORS[900]))
            gone = [passages.pop(key)]
            if RNG.random() < 0.4:
                added = [Passage(text(), "", key)]
        else:
            added = [Passage(text(), "", f"a longer id {step}")]
        new = VECTORS[300 + step][None] if added else None
        for index in (by_words, beside, alone):
            index.change({one.id: one for one in gone}, {one.id: one for one in added}, new)
        for passage in gone:
            del rows[str(passage.id)]
        for passage in added:
            passages[str(passage.id)], rows[str(passage.id)] = passage, VECTORS[300 + step]
        if step % 39 == 38:
            ids = np.sort(encode_ids([*RNG.sample(list(passages), 30), "p1"]))
            fresh = words(passages)
            questions = [text() for _ in range(5)] + ["t3", "unknown"]
            assert_same(by_words, fresh, questions, ids)
            assert [by_words.share(one, 1.0) for one in questions] == [
                fresh.share(one, 1.0) for one in questions
            ]
            for living in (beside, alone):
                assert_same(living, vectors(rows), VECTORS[900:905], ids)
