"""Embedding with kept tokens: the same vectors, nothing tokenised twice, and nothing used that is damaged or
of something else."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import ConfigError
from dpr.core.records import Passage
from dpr.embedding import corpus_tokens
from dpr.embedding.corpus_tokens import CorpusTokens
from dpr.embedding.encode import tokenize_passages
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from dpr.jobs.embed import run
from dpr.storage.durable import durable_folder
from tests.helpers.tiny import sentence, tiny_model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus, and two checkpoints of one tokenizer."""
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    for seed in (0, 1):
        with durable_folder(tmp_path / f"model-{seed}") as target:
            tiny_model(tmp_path / "encoder", dtype=torch.float32, seed=seed).write_to(target)
    rng = random.Random(0)
    rows = (
        Passage(sentence(rng, rng.randint(0, 30)), sentence(rng, row % 3), f"p{row}") for row in range(20)
    )
    write_passages(tmp_path / "corpus.tsv", rows)
    return tmp_path


def embedded(folder: Path, out: str, *, model: int = 0, **options: Any) -> dict[str, bytes]:
    settings = {"chunk_size": 8, "batch_tokens": 200, "no_cuda": True, **options}
    paths = {
        "model_file": str(folder / f"model-{model}"),
        "ctx_src": str(folder / "corpus.tsv"),
        "out_file": str(folder / out),
    }
    config = EmbedConfig(**paths, **settings)
    config.check()
    report = run(config)
    return {path.name: path.read_bytes() for path in report.folder.iterdir()}


def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the chunks that are tokenised from now on."""
    sizes: list[int] = []

    def noted(tensorizer: Any, passages: Any) -> Any:
        sizes.append(len(passages))
        return tokenize_passages(tensorizer, passages)

    monkeypatch.setattr(corpus_tokens, "tokenize_passages", noted)
    return sizes


@pytest.mark.parametrize("setting", ["auto", "path"])
def test_vectors_are_the_same_bits_and_another_checkpoint_tokenises_nothing(
    folder: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = setting if setting == "auto" else str(folder / "kept")
    expected = [embedded(folder, f"plain-{model}", model=model) for model in (0, 1)]
    assert expected[0] != expected[1]
    sizes = tokenised(monkeypatch)
    assert embedded(folder, "first", token_store=setting) == expected[0]
    assert sizes == [8, 8, 4]
    assert embedded(folder, "second", model=1, token_store=setting) == expected[1]
    assert embedded(folder, "third", model=1, token_store=setting, encoder_type="ctx") == expected[1]
    assert sizes == [8, 8, 4]


@pytest.mark.parametrize("damage", ["changed", "cut", "lost", "no proof", "empty"])
def test_a_damaged_chunk_is_made_again(folder: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = embedded(folder, "first", token_store="auto")
    (kept,) = (folder / "cache").glob("corpus-tokens-*")
    file = kept / ("step-00001.json" if damage == "no proof" else "chunk-000001/tokens.npy")
    content = file.read_bytes()
    if damage in ("lost", "no proof"):
        file.unlink()
    else:
        file.write_bytes({"changed": content[:-2] + b"\x09\x00", "cut": content[:-2], "empty": b""}[damage])
    sizes = tokenised(monkeypatch)
    assert embedded(folder, "second", token_store="auto") == expected
    assert len(sizes) == 1
    assert embedded(folder, "third", token_store="auto") == expected
    assert len(sizes) == 1


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
    expected = embedded(folder, "plain")
    with caplog.at_level(logging.WARNING):
        assert embedded(folder, "second", token_store=str(folder / "file" / "x")) == expected
    assert caplog.text.count("tokens are not kept") == 1


def test_yaml_s_off_is_off_and_nonsense_is_refused(folder: Path) -> None:
    assert embedded(folder, "plain", token_store="false") == embedded(folder, "again")
    assert not list((folder / "cache").glob("corpus-tokens-*"))
    with pytest.raises(ConfigError, match="token_store='True' is neither auto"):
        embedded(folder, "x", token_store="True")
