"""Kept tokens of a corpus: nothing is tokenised twice, and nothing used that is damaged or of something else."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpr.core.records import Passage
from dpr.embedding import encode
from dpr.embedding.encode import CorpusTokens, tokenize_passages
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from tests.helpers.tiny import sentence, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus."""
    rng = random.Random(0)
    rows = (
        Passage(sentence(rng, rng.randint(0, 30)), sentence(rng, row % 3), f"p{row}") for row in range(20)
    )
    write_passages(tmp_path / "corpus.tsv", rows)
    return tmp_path


def corpus(folder: Path, cache: str = "kept") -> CorpusTokens:
    tensorizer = tiny_model(folder / "encoder").tensorizer
    source = PassageSource(folder / "corpus.tsv")
    return CorpusTokens(source, 20, tensorizer, chunk_size=8, cache_dir=folder / cache)


def tokens_in(folder: Path, cache: str = "kept") -> list[list[int]]:
    return [chunk.tokens.tokens.tolist() for chunk in corpus(folder, cache).read([0, 1, 2])]


def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the chunks that are tokenised from now on."""
    sizes: list[int] = []

    def noted(tensorizer: Any, passages: Any) -> Any:
        sizes.append(len(passages))
        return tokenize_passages(tensorizer, passages)

    monkeypatch.setattr(encode, "tokenize_passages", noted)
    return sizes


@pytest.mark.parametrize("damage", ["none", "changed", "cut", "lost", "no proof", "empty"])
def test_tokens_are_kept_and_a_damaged_chunk_is_made_again(
    folder: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = tokenised(monkeypatch)
    expected = tokens_in(folder)
    assert sizes == [8, 8, 4]
    (kept,) = (folder / "kept").glob("corpus-tokens-*")
    file = kept / ("step-00001.json" if damage == "no proof" else "chunk-000001/tokens.npy")
    content = file.read_bytes()
    if damage in ("lost", "no proof"):
        file.unlink()
    elif damage != "none":
        file.write_bytes({"changed": content[:-2] + b"\x09\x00", "cut": content[:-2], "empty": b""}[damage])
    for _ in range(2):
        assert tokens_in(folder) == expected
    assert len(sizes) == (3 if damage == "none" else 4)


def test_other_texts_or_lengths_have_tokens_of_their_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensorizer, sizes = tiny_model(folder / "encoder").tensorizer, tokenised(monkeypatch)

    def tokens_of(passages: list[Passage], **options: Any) -> list[int]:
        write_passages(folder / "other.tsv", [replace(one, id=str(row)) for row, one in enumerate(passages)])
        source = PassageSource(folder / "other.tsv", **options)
        (chunk,) = CorpusTokens(source, len(passages), tensorizer, cache_dir=folder / "kept").read([0])
        assert chunk.ids.tolist() == [str(row).encode() for row in range(len(passages))]
        given = [source.as_encoded(passage) for passage in source.read()]
        assert chunk.tokens.tokens.tolist() == tokenize_passages(tensorizer, given).tokens.tolist()
        return list(chunk.tokens.tokens.tolist())

    variants = [
        [Passage("ba be", "bi")],
        [Passage("be", "biba")],
        [Passage("biba be")],
        [Passage("ba be", "bi")] * 2,
    ]
    for passages in variants * 2:
        tokens_of(passages)
    assert len(sizes) == len(variants)
    tokens_of(variants[0], passage_prefix="bo ")
    assert len(sizes) == len(variants) + 1
    tensorizer.sequence_length = 4
    long = [Passage("ba be bi bo")]
    assert len(tokens_of(long)) == len(tokens_of(long)) == 4 and len(sizes) == len(variants) + 2


def test_only_some_rows_of_a_corpus_are_kept_under_their_own_name(folder: Path) -> None:
    tensorizer, source = tiny_model(folder / "encoder").tensorizer, PassageSource(folder / "corpus.tsv")
    for first_row in (0, 4, 0):
        options = {"chunk_size": 4, "first_row": first_row, "cache_dir": folder / "kept"}
        chunks = list(CorpusTokens(source, 8, tensorizer, **options).read([0, 1]))  # type: ignore[arg-type]
        ids = [key.decode() for chunk in chunks for key in chunk.ids.tolist()]
        assert ids == [f"p{row}" for row in range(first_row, first_row + 8)]
        assert [chunk.number for chunk in chunks] == [0, 1]


def test_where_nothing_can_be_written_nothing_is_kept(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        assert tokens_in(folder, "file/x") == tokens_in(folder)
    assert caplog.text.count("tokens are not kept") == 1
