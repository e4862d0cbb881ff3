"""BM25: the words it sees, its scores against the formula, its ties, and its metrics on real collections."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dpr.core.errors import InputError
from dpr.formats.packed_ids import PackedIds
from dpr.indexer.bm25 import STOP_WORDS, Bm25Index, lexical_tokens
from dpr.indexer.ranking import to_rankings
from dpr.indexer.registry import Index, IndexChoice, IndexTexts
from dpr.indexer.saved import IndexStore
from dpr.indexer.settings import Bm25Settings
from dpr.storage.durable import read_manifest, write_manifest
from tests.helpers.indexes import rewrite

UNSPACED = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "unspaced_scripts.json").read_text(encoding="utf-8")
)
"""Twelve passages and six questions, each with the number of the passage that answers it, in scripts without
spaces and in Korean."""
TEXTS = {
    "d1": "The cat sat on the mat with another cat",
    "d2": "Dogs and cats",
    "d3": "Parsing a CSV file in Python",
    "d4": "csv files, parsed",
}


def build(texts: dict[str, str] = TEXTS) -> Bm25Index:
    return Bm25Index.build(IndexTexts(list(texts), texts.values()))


def test_words_are_lower_case_without_stop_words_and_plural_s() -> None:
    found = lexical_tokens("The Cats' read_csv2 isn't 3.5 of s")
    assert found == ["cat", "read", "csv2", "isn", "t", "3", "5", "s"]
    assert len(STOP_WORDS) == 33


def test_words_of_other_scripts_stay_whole() -> None:
    german, russian, hindi = (
        "\u00dcn\u00efcode",
        "\u041f\u0440\u0438\u0432\u0435\u0442",
        "\u0939\u093f\u0928\u094d\u0926\u0940",
    )
    assert lexical_tokens(f"{german} {russian}, {hindi}") == [german.lower(), russian.lower(), hindi]
    assert lexical_tokens("cafe\u0301") == lexical_tokens("caf\u00e9"), (
        "composed and decomposed letters are the same word"
    )


@pytest.mark.parametrize("name", sorted(UNSPACED))
def test_questions_find_their_passages_in_scripts_without_spaces(name: str) -> None:
    passages, questions = UNSPACED[name]["passages"], UNSPACED[name]["questions"]
    index = build({str(number): text for number, text in enumerate(passages)})
    found = to_rankings(index.search([question for question, _ in questions], 10))
    ranks = [
        [key for key, _ in ranking].index(str(right))
        for ranking, (_, right) in zip(found, questions, strict=True)
    ]
    assert sum(1 / math.log2(rank + 2) for rank in ranks) / len(ranks) > 0.9


def test_a_question_of_one_character_finds_passages() -> None:
    index = build(
        {
            "zh": "\u5927\u718a\u732b\u5403\u7af9\u5b50",
            "other": "\u4e2d\u56fd\u7684\u9996\u90fd",
            "en": "pandas",
        }
    )
    for question in ("\u732b", "\u5927\u718a\u732b", "\u732b pandax"):
        assert [key for key, _ in to_rankings(index.search([question], 5))[0]] == ["zh"]


def test_an_index_of_words_that_were_cut_otherwise_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "index")
    manifest = read_manifest(tmp_path / "index")
    del manifest["metadata"]["source"]["words"]  # as before scripts without spaces were cut
    write_manifest(tmp_path / "index", metadata=manifest["metadata"])
    with pytest.raises(
        InputError, match="was built with words None, expected 2; remove it to build it again"
    ):
        saved(tmp_path / "index")


def test_scores_are_bm25_by_hand() -> None:
    ranking = to_rankings(build().search(["cat"], 10))[0]
    lengths = {name: len(lexical_tokens(text)) for name, text in TEXTS.items()}
    average = sum(lengths.values()) / len(lengths)
    idf = math.log(1 + (4 - 2 + 0.5) / (2 + 0.5))
    for name, frequency in (("d1", 2), ("d2", 1)):
        expected = idf * frequency / (frequency + 0.9 * (0.6 + 0.4 * lengths[name] / average))
        assert dict(ranking)[name] == pytest.approx(expected, rel=1e-6)
    assert [name for name, _ in ranking] == ["d1", "d2"], "passages without the word are not hits"


def test_a_repeated_query_word_counts_once() -> None:
    assert to_rankings(build().search(["cat cats CAT"], 10)) == to_rankings(build().search(["cat"], 10))


@pytest.mark.parametrize("long", [False, True], ids=["of one width", "as offsets and bytes"])
def test_only_ids_of_hits_and_of_ties_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    rng = np.random.default_rng(0)
    ids = [f"d{number:03d}" + ("x" * 200 if long and number == 7 else "") for number in rng.permutation(300)]
    texts = [f"w{a} w{b} w{c}" for a, b, c in rng.integers(0, 9, (300, 3))]
    texts[5:8] = ["rare w1 w2", "rare w1 w2 w3 w4", "rare"]
    corpus, questions = IndexTexts(ids, texts), ["w1", "w2 w5", "rare"]
    choice = IndexChoice("bm25", Bm25Settings())
    built = IndexStore(choice, folder=tmp_path / "index").load_or_build(lambda: corpus)
    assert np.load(tmp_path / "index" / "ids.npy").dtype.kind == ("u" if long else "S")
    opened = IndexStore(choice, folder=tmp_path / "index").load_or_build(None)
    assert type(built) is type(opened) is Bm25Index and isinstance(opened._ids.array, np.memmap)
    read: list[int] = []
    real = PackedIds.__getitem__
    monkeypatch.setattr(
        PackedIds, "__getitem__", lambda ids, part: (found := real(ids, part), read.append(len(found)))[0]
    )
    for question in questions:
        all_scores = built._scores(question).tolist()
        expected = sorted((-score, key) for score, key in zip(all_scores, ids, strict=True) if score > 0)
        for k in (1, 3, 50, 1000):
            for index in (built, opened):
                assert to_rankings(index.search([question], k))[0] == [(key, -by) for by, key in expected[:k]]
    read.clear()
    opened.search(["rare"], 2)
    assert sum(read) == 2, "without ties those of the hits"


@pytest.mark.parametrize("question", ["", "zebra", "the of and", "?!"])
def test_a_question_without_known_words_finds_nothing(question: str) -> None:
    scores, ids = build().search([question, "cat"], 5)
    assert ids[0] == []
    assert ids[1] == ["d1", "d2"]
    assert np.isneginf(scores[0]).all()


def test_what_cannot_be_indexed_is_refused() -> None:
    with pytest.raises(InputError, match="no passages"):
        build({})
    with pytest.raises(InputError, match="no passage holds a word"):
        build({"a": "the of", "b": ""})
    with pytest.raises(InputError, match="'x' occurs more than once"):
        Bm25Index.build(IndexTexts(["x", "y", "x"], ["a1", "b1", "c1"]))
    with pytest.raises(ValueError, match="2 ids for 1 texts"):
        Bm25Index.build(IndexTexts(["x", "y"], ["a1"]))


def saved(folder: Path) -> Index:
    choice = IndexChoice("bm25", Bm25Settings())
    corpus = IndexTexts(list(TEXTS), TEXTS.values())
    return IndexStore(choice, folder=folder, source={"corpus": "abc"}).load_or_build(lambda: corpus)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("int_dtype", []),
        ("delta", None),
        ("num_docs", []),
        ("vocab", {"cat": 99}),
        ("vocab", []),
    ],
)
def test_an_index_of_wrong_types_under_right_hashes_is_refused(
    tmp_path: Path, name: str, value: object
) -> None:
    saved(folder := tmp_path / "index")
    file = folder / ("vocab.index.json" if name == "vocab" else "params.index.json")
    stored = json.loads(file.read_text())
    changed = value if name == "vocab" else {**stored, name: value}
    if name == "vocab" and isinstance(value, dict):
        changed = {**stored, **value}
    rewrite(folder, file.name, json.dumps(changed).encode())
    with pytest.raises(InputError, match="index"):
        saved(folder)
