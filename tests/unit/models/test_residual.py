"""A transformer that starts from words: untrained it is the static encoder, trained it is more, packed as
padded."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from dpr.core.errors import ConfigError
from dpr.models.backbones import backbone_from_config
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from dpr.models.static import StaticBackbone, StaticConfig
from tests.helpers.tiny import static_folder, tiny_model
from tests.unit.models.fast.test_packing import CONFIGS, LENGTHS, batch_of


@pytest.mark.parametrize("family", ["bert", "modernbert", "roberta"])
def test_untrained_it_equals_the_static_encoder(family: str) -> None:
    torch.manual_seed(0)
    backbone = backbone_from_config(CONFIGS[family], dropout=0.0)
    words = backbone.get_input_embeddings().weight
    static = Encoder(
        StaticBackbone(StaticConfig(vocab_size=len(words), hidden_size=words.shape[1])),
        pooling="idf",
        normalize=True,
    )
    transformer = Encoder(backbone, pooling="idf", normalize=True, residual_words=True)
    nn.init.uniform_(static.pooling.token_weights, 0.5, 2)
    with torch.no_grad():
        static.backbone.words.weight.copy_(words)
        transformer.pooling.token_weights.copy_(static.pooling.token_weights)
    assert transformer.is_packed
    torch.testing.assert_close(transformer(batch_of(LENGTHS)), static(batch_of(LENGTHS)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_packed_equals_padded_in_vectors_and_gradients(family: str) -> None:
    torch.manual_seed(0)
    backbone = backbone_from_config(CONFIGS[family], dropout=0.0)
    towers = [
        Encoder(copy.deepcopy(backbone), pooling="idf", packed=packed, residual_words=True).double()
        for packed in (True, False)
    ]
    for tower in towers:
        torch.manual_seed(1)
        nn.init.normal_(tower.backbone.word_residual.weight)
        vectors = tower(batch_of(LENGTHS))
        (
            vectors * torch.linspace(-1, 1, vectors.numel(), dtype=vectors.dtype).view(vectors.shape)
        ).sum().backward()
        tower.vectors = vectors.detach()
    packed, padded = towers
    assert packed.is_packed and not padded.is_packed
    torch.testing.assert_close(packed.vectors, padded.vectors, rtol=0, atol=1e-12)
    of_padded = dict(padded.named_parameters())
    for name, weight in packed.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(weight.grad, of_padded[name].grad, rtol=0, atol=1e-12, msg=name)
    assert packed.backbone.word_residual.weight.grad is not None


def test_a_checkpoint_keeps_it(tmp_path: Path) -> None:
    model = tiny_model(
        tmp_path / "encoder", shared=True, pooling="mean", residual_words=True, dtype=torch.float32
    )
    nn.init.normal_(model.question_model.backbone.word_residual.weight)
    model.save(tmp_path / "model")
    loaded = BiEncoder.load(tmp_path / "model")
    assert loaded.settings.residual_words and loaded.fingerprint == model.fingerprint
    assert (loaded.encode(["ba be bi"]) == model.eval().encode(["ba be bi"])).all()
    plain = tiny_model(tmp_path / "encoder", shared=True, pooling="mean")
    assert "residual_words" not in plain.settings.as_dict(), (
        "fingerprints of other models stay what they were"
    )


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"encoder\.residual_words=true, but encoder\.pooling=cls reads one token"
    ):
        tiny_model(tmp_path / "encoder", residual_words=True)
    with pytest.raises(ConfigError, match="a static encoder has no layers"):
        tiny_model(static_folder(tmp_path / "static"), pooling="idf", residual_words=True)
