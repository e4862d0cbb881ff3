"""A static encoder whose rows are the corpus's singular vectors: what they are, what they keep of BM25, and
how the folder is opened."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from dpr.formats.token_frequencies import TokenFrequencies
from dpr.jobs.train import build_model
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings, TowerSettings
from dpr.preparation import corpus_rows
from dpr.preparation.corpus_rows import PassageSample, svd_rows
from dpr.preparation.new_encoder import EncoderShape, write_encoder
from dpr.training.command_settings import BiEncoderTrainConfig
from tests.helpers.jobs import new_encoder as main

WIDTH = 64


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Of 400 words in 40 topics; the words of a topic come together."""
    generator = random.Random(0)
    syllables = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
    words = sorted({"".join(generator.choices(syllables, k=3)) for _ in range(400)})
    topics = [generator.choices(words, k=25) for _ in range(40)]
    return [
        " ".join(
            generator.choices(generator.choice(topics), k=generator.randint(10, 40))
            + generator.choices(words, k=5)
        )
        for _ in range(600)
    ]


@pytest.fixture
def corpus(tmp_path: Path, texts: list[str]) -> Path:
    write_passages(tmp_path / "corpus.tsv", (Passage(text, "", str(row)) for row, text in enumerate(texts)))
    return tmp_path / "corpus.tsv"


def make(corpus: Path, out: Path, *more: str) -> Path:
    given = [
        "corpus",
        str(corpus),
        "out",
        str(out),
        "vocab-size",
        "700",
        "hidden",
        str(WIDTH),
        "layers",
        "0",
        "rows",
        "svd",
    ]
    assert main([f"--{word}" if place % 2 == 0 else word for place, word in enumerate(given)] + [*more]) == 0
    return out


def rows_of(folder: Path) -> Tensor:
    model = BiEncoder.from_pretrained(str(folder), EncoderSettings(pooling="bm25", shared=True))
    return model.question_model.backbone.words.weight.detach()


def sampled(frequency: np.ndarray) -> tuple[PassageSample, TokenFrequencies]:
    """A sample of passages with these numbers of each token (N, V)."""
    sample = PassageSample()
    for passage in frequency:
        sample.add(passage.nonzero()[0], passage[passage > 0])
    return sample, TokenFrequencies(len(frequency), (frequency > 0).sum(0), float(frequency.sum(1).mean()))


def test_rows_are_the_right_singular_vectors_of_the_weighted_passages() -> None:
    frequency = np.random.default_rng(0).poisson(np.linspace(2, 0.05, 30), (200, 30))
    sample, frequencies = sampled(frequency)
    lengths = frequency.sum(1, keepdims=True)
    counted = (
        frequency / (frequency + 0.9 * (0.6 + 0.4 * lengths / lengths.mean())) * np.sqrt(frequencies.idf())
    )
    np.testing.assert_allclose(sample.weighted(frequencies).toarray(), counted, rtol=1e-5)
    _, values, expected = np.linalg.svd(counted)
    rows = svd_rows(sample, frequencies, 30).numpy()
    np.testing.assert_allclose(np.linalg.norm(counted @ rows, axis=0), values, rtol=1e-4)
    assert np.abs((expected[:3] * rows.T[:3]).sum(1)) == pytest.approx(1, abs=0.01)


def test_a_sample_is_bounded_and_evenly_spaced() -> None:
    sample = PassageSample(most=100)
    for row in range(1001):
        sample.add(np.array([row % 7, 8]), np.array([1, row + 1]))
    matrix = sample.weighted(TokenFrequencies(1001, np.full(9, 100), 10.0))
    assert matrix.shape == (63, 9) and [counts[1] for _, counts in sample._kept] == list(range(1, 1002, 16))


def test_the_rows_keep_more_of_bm25_than_random_ones(corpus: Path, tmp_path: Path, texts: list[str]) -> None:
    generator = random.Random(1)
    questions = [" ".join(generator.sample(text.split(), 4)) for text in texts[::6]]

    def first_ten(folder: Path) -> tuple[list[set[int]], Tensor]:
        model = BiEncoder.from_pretrained(str(folder), EncoderSettings(pooling="bm25", shared=True))
        scores = torch.from_numpy(
            model.encode_questions(questions) @ model.encode_passages([Passage(text) for text in texts]).T
        )
        return [set(row.tolist()) for row in scores.topk(10).indices], scores.max(1).values

    made = make(corpus, tmp_path / "svd")
    exact = make(
        corpus,
        tmp_path / "exact",
        "--tokenizer",
        str(made),
        "--hidden",
        str(json.loads((made / "config.json").read_text())["vocab_size"]),
    )
    chance = make(corpus, tmp_path / "random", "--tokenizer", str(made), "--rows", "random")
    wanted, highest = first_ten(exact)
    svd, begun = first_ten(made)
    overlap = [
        np.mean([len(a & b) / 10 for a, b in zip(found, wanted, strict=True)])
        for found in (svd, first_ten(chance)[0])
    ]
    assert overlap[0] > overlap[1] + 0.15, overlap
    assert 0.5 < (begun / highest).mean() < 1.01, "scores begin as the part of BM25's that the rows keep"


def test_columns_are_orthogonal_and_as_long_as_random_ones(corpus: Path, tmp_path: Path) -> None:
    rows = rows_of(make(corpus, tmp_path / "made"))
    torch.testing.assert_close(rows.T @ rows, torch.eye(WIDTH) * 0.01 * WIDTH, rtol=0, atol=1e-5)


def test_two_folders_have_the_same_bits_and_a_second_command_nothing_to_do(
    corpus: Path, tmp_path: Path
) -> None:
    first, second = make(corpus, tmp_path / "first"), make(corpus, tmp_path / "second")
    for file in sorted(first.iterdir()):
        assert file.read_bytes() == (second / file.name).read_bytes(), file.name
    written = (first / "model.safetensors").stat().st_mtime_ns
    make(corpus, first)
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(InputError, match="exists"):
        make(corpus, first, "--rows", "random")


def test_a_static_encoder_begins_with_the_rows_of_its_folder(corpus: Path, tmp_path: Path) -> None:
    folder = make(corpus, tmp_path / "made")

    def built(**settings: Any) -> Tensor:
        init = settings.pop("init", None)
        encoder = TowerSettings(
            encoder_model_type="static", pretrained_model_cfg=str(folder), pooling="idf_sqrt", **settings
        )
        return build_model(
            BiEncoderTrainConfig(init=init, encoder=encoder)
        ).question_model.backbone.words.weight.detach()

    rows = rows_of(folder)
    assert (built() == rows).all() and (built(init="weights") == rows).all()
    assert not (built(init="scratch") == rows).any() and not (built(pretrained=False) == rows).any()
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="the weights could not be loaded"):
        built()


def test_a_table_that_fails_leaves_nothing_behind(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(corpus_rows, "svd_rows", stopped)
    with pytest.raises(KeyboardInterrupt):
        make(corpus, tmp_path / "made")
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == ["corpus.tsv"]


def test_what_has_no_rows_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"rows=svd has no effect with layers=1; set layers=0, or leave rows out"
    ):
        make(corpus, tmp_path / "made", "--layers", "1")
    with pytest.raises(
        ConfigError,
        match=(
            r"hidden=704 is more than the \d+ tokens, which rows=svd has no rows for; set hidden=\d+ or less"
        ),
    ):
        make(corpus, tmp_path / "made", "--hidden", "704")
    with pytest.raises(ConfigError, match="rows=svd makes the rows of a static encoder from passages"):
        write_encoder(tmp_path / "made", lambda: ["ba be"], shape=EncoderShape(num_layers=0), rows="svd")
    assert not (tmp_path / "made").exists()
