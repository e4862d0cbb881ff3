"""Vectors cut to fewer dimensions: the prefix, of length 1 where the model's are, and never beside vectors of
another width."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage
from dpr.embedding.encode import fit_to_vectors
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from dpr.formats.vector_shards import open_shards
from dpr.models.biencoder import BiEncoder
from tests.helpers.tiny import sentence, tiny_model

TEXTS = ["ba be bi", "ko ku", "sa"]


@pytest.mark.parametrize("normalize", [False, True])
def test_a_cut_vector_is_the_prefix(tmp_path: Path, normalize: bool) -> None:
    model = tiny_model(tmp_path, normalize=normalize, dtype=torch.float32)
    whole, fingerprint = model.encode_passages(TEXTS), model.fingerprint
    model.keep_dimensions(16)
    assert model.fingerprint == fingerprint, "all dimensions are those that it has"
    model.keep_dimensions(5)
    expected = whole[:, :5] / (np.linalg.norm(whole[:, :5], axis=1, keepdims=True) if normalize else 1)
    np.testing.assert_allclose(model.encode_passages(TEXTS), expected, rtol=1e-5)
    assert model.dimension == 5 and model.fingerprint != fingerprint
    with pytest.raises(ConfigError, match="dimensions=6, but the model's vectors have 5"):
        model.keep_dimensions(6)


def test_a_saved_model_keeps_its_width(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "encoder", dtype=torch.float32)
    model.keep_dimensions(5)
    model.save(tmp_path / "saved")
    loaded = BiEncoder.load(tmp_path / "saved")
    assert loaded.dimension == 5 and loaded.fingerprint == model.fingerprint
    np.testing.assert_array_equal(loaded.encode_questions(TEXTS), model.encode_questions(TEXTS))


def test_vectors_of_different_widths_never_meet(tmp_path: Path) -> None:
    tiny_model(tmp_path / "encoder", dtype=torch.float32).save(tmp_path / "model")
    rng = random.Random(0)
    write_passages(tmp_path / "corpus.tsv", [Passage(sentence(rng, 4), "", f"p{row}") for row in range(6)])

    def embedded(dimensions: int, name: str) -> None:
        config = EmbedConfig(out_file=str(tmp_path / name), dimensions=dimensions)
        embed_shard(BiEncoder.load(tmp_path / "model"), PassageSource(tmp_path / "corpus.tsv"), config)

    embedded(5, "narrow")
    embedded(0, "whole")
    with pytest.raises(InputError, match="holds finished vectors with dimension=5, this run has 7"):
        embedded(7, "narrow")
    with pytest.raises(InputError, match="made with another model than"):
        open_shards([tmp_path / "narrow_0", tmp_path / "whole_0"])

    model, shards = BiEncoder.load(tmp_path / "model"), open_shards([tmp_path / "narrow_0"])
    fit_to_vectors(model, shards)
    assert model.dimension == 5, "questions are cut as the passages are"
    with pytest.raises(InputError, match="vectors of another model"):
        fit_to_vectors(model, open_shards([tmp_path / "whole_0"]))
