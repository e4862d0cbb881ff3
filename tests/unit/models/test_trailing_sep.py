"""The original's stray [SEP] equals the original's own way: pad to the window, overwrite the last position."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, DistilBertConfig, ModernBertConfig, RobertaConfig

from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError
from dpr.core.records import Passage
from dpr.models.backbones import backbone_from_config
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.encoder import Encoder
from tests.helpers.tiny import WORDS, tiny_model

WINDOW = 24
SEP, PAD = 6, 0
# 1 word to more words than the window holds; 21, 22 and 23 words fill all but one place, all, and one too
# many.
TEXTS = [" ".join(WORDS[:count]) for count in (1, 5, 21, 22, 23, 40, 5, 12)]
PASSAGES = [
    Passage(text, title)
    for text, title in zip(TEXTS, ["", "ba be", "", "", "", "bi", "bo", "bu"], strict=True)
]


def window_vectors(backbone: Any, sequences: list[list[int]]) -> torch.Tensor:
    """(N, L, D) hidden states of the original's windows."""
    input_ids = torch.full((len(sequences), WINDOW), PAD)
    for row, tokens in enumerate(sequences):
        input_ids[row, : len(tokens)] = torch.tensor(tokens)
        input_ids[row, -1] = SEP
    hidden: torch.Tensor = backbone(
        input_ids=input_ids, attention_mask=(input_ids != PAD).long()
    ).last_hidden_state
    return hidden


def models(folder: Path, *, packed: bool, **settings: Any) -> BiEncoder:
    model = tiny_model(folder, dpr_trailing_sep=True, options=TowerOptions(packed=packed), **settings)
    assert model.question_model.is_packed is packed
    return model


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_vectors_and_gradients_are_those_of_the_padded_window(
    tmp_path: Path, packed: bool, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpr.models.fast.packed.CPU_FORWARD_TOKENS", 60)
    model = models(tmp_path, packed=packed, pooling=pooling)
    backbone = tiny_model(tmp_path).ctx_model.backbone  # plain, without any of it
    tower = model.ctx_model
    backbone.load_state_dict(tower.backbone.state_dict())
    sequences = model.tensorizer.passage_tokens(PASSAGES)
    assert {len(tokens) for tokens in sequences} >= {3, WINDOW - 1, WINDOW}
    hidden, vectors = window_vectors(backbone, sequences), tower(TokenBatch.from_lists(sequences))
    expected = hidden[:, 0]
    if pooling == "mean":
        lengths = map(len, sequences)
        expected = torch.stack([row[:length].mean(0) for row, length in zip(hidden, lengths, strict=True)])
    weights = torch.randn(vectors.shape, dtype=vectors.dtype, generator=torch.Generator().manual_seed(1))
    (expected * weights).sum().backward()
    (vectors * weights).sum().backward()
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-10)
    for (name, one), (_, other) in zip(
        backbone.named_parameters(), tower.backbone.named_parameters(), strict=True
    ):
        torch.testing.assert_close(other.grad, one.grad, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("family", [BertConfig, RobertaConfig, DistilBertConfig])
def test_every_family_numbers_the_far_position_by_its_own_rule(family: Any) -> None:
    torch.manual_seed(0)
    backbone = backbone_from_config(
        family(num_hidden_layers=2, hidden_size=48, num_attention_heads=12, intermediate_size=32), dropout=0.0
    )
    packed, padded = Encoder(copy.deepcopy(backbone)).double(), Encoder(backbone, packed=False).double()
    batch = TokenBatch.from_lists([[5, 9, 7], [6] * 20, list(range(5, 28)), [8]])
    before = padded(batch)
    for tower in (packed, padded):
        tower.attend_to_last(6, WINDOW - 1)
    torch.testing.assert_close(packed(batch), padded(batch), rtol=0, atol=1e-6)
    assert ((padded(batch) - before).abs().amax(1) > 1e-6).all()


def test_backbones_that_cannot_say_so() -> None:
    near_only = Encoder(
        backbone_from_config(ModernBertConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2))
    )
    with pytest.raises(ConfigError, match=r"dpr_trailing_sep=true: ModernBertModel"):
        near_only.attend_to_last(2, 20)
    sizes = {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64}
    short = Encoder(backbone_from_config(DistilBertConfig(**sizes, max_position_embeddings=20)))
    short.attend_to_last(2, 19)
    with pytest.raises(ConfigError, match="20 positions"):
        short.attend_to_last(2, 20)
