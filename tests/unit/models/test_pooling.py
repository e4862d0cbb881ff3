"""Every pooling gives the same vectors and gradients packed and padded; others are refused at the start."""

import copy
import itertools
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpr.core.batch import plan_buckets
from dpr.core.errors import CheckpointError, ConfigError
from dpr.core.settings import settings
from dpr.models.backbones import backbone_from_config
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder, EncoderSettings
from dpr.models.fast import attention
from dpr.models.pooling import POOLINGS, IdfPooling, MeanPooling, make_pooling
from tests.helpers.tiny import tiny_model
from tests.helpers.training import assert_near, encoded
from tests.unit.models.fast.test_packing import CONFIGS, LENGTHS, batch_of

HERE = "tests.unit.models.test_pooling"


class Learned(nn.Module):
    """A mean that a learnt vector weighs the tokens for, beside the largest values: of twice the width."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.scorer = nn.Linear(hidden_size, 1)

    def token_read(self, lengths: Tensor, position: Tensor) -> Tensor | None:
        return None

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        scores = self.scorer(hidden)[:, :, 0].masked_fill(~mask, -torch.inf)
        weighted = torch.einsum("nld,nl->nd", hidden, scores.softmax(1))
        return torch.cat([weighted, hidden.masked_fill(~mask[:, :, None], -torch.inf).amax(1)], dim=1)

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
        padded = hidden.new_zeros(*mask.shape, hidden.shape[1])
        padded[mask] = hidden
        return self.padded(padded, tokens, mask, position)


class Unlike(MeanPooling):
    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        return super().packed(hidden, tokens, lengths, position) + 0.01


class Misread(MeanPooling):
    def token_read(self, lengths: Tensor, position: Tensor) -> Tensor | None:
        return position


class Whole(MeanPooling):
    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        return hidden


class Lacking:
    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        pass

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        return hidden[:, 0]


@pytest.mark.parametrize("trailing", [False, True], ids=["", "trailing sep"])
@pytest.mark.parametrize(
    ("family", "pooling"),
    [
        *itertools.product(["bert"], [*POOLINGS, f"{HERE}:Learned"]),
        ("modernbert", "cls"),
        ("modernbert", "mean"),
    ],
)
def test_packed_equals_padded_in_vectors_and_gradients(
    family: str, pooling: str, trailing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trailing and family == "modernbert":
        pytest.skip("its windows do not reach that token")
    monkeypatch.setattr("dpr.models.fast.packed.CPU_FORWARD_TOKENS", 60)
    monkeypatch.setattr(attention, "plan_buckets", partial(plan_buckets, min_tokens=10))
    torch.manual_seed(0)
    backbone = backbone_from_config(CONFIGS[family], dropout=0.0)
    packed = Encoder(copy.deepcopy(backbone), pooling=pooling).double()
    if isinstance(packed.pooling, IdfPooling):
        nn.init.normal_(packed.pooling.token_weights)
    padded = Encoder(backbone, pooling=pooling, packed=False).double()
    padded.load_state_dict(packed.state_dict())
    assert packed.is_packed and packed.fast.prunes_last_layer == (pooling in ("cls", "last"))
    if trailing:
        packed.attend_to_last(6, 49)
        padded.attend_to_last(6, 49)
    found = encoded(packed, batch_of(LENGTHS))
    assert found["vectors"].shape == (len(LENGTHS), packed.dimension)
    assert_near(found, encoded(padded, batch_of(LENGTHS)), 2e-6)


def test_each_reads_what_its_name_says() -> None:
    hidden = torch.tensor([[[1.0, 8.0], [2.0, 0.0], [6.0, 1.0]], [[5.0, -1.0], [0.0, 9.0], [0.0, 9.0]]])
    mask, position = torch.tensor([[True] * 3, [True, False, False]]), torch.tensor([1, 0])
    tokens = torch.tensor([[1, 2, 2], [2, 0, 0]])
    expected = {
        "cls": [[2.0, 0.0], [5.0, -1.0]],
        "last": [[6.0, 1.0], [5.0, -1.0]],
        "mean": [[3.0, 3.0], [5.0, -1.0]],
        "weighted_mean": [[23 / 6, 11 / 6], [5.0, -1.0]],
        "idf": [[(0.5 + 2 * 2 + 2 * 6) / 3, 6 / 3], [10.0, -2.0]],
        "idf_sqrt": [[(0.5 + (2 * 2 + 2 * 6) / 2**0.5) / 3, (4 + 2 / 2**0.5) / 3], [10.0, -2.0]],
    }
    for name in POOLINGS:
        pooling, width = make_pooling(name, 2, 4)
        if isinstance(pooling, IdfPooling):
            pooling.token_weights.data = torch.tensor([9.0, 0.5, 2.0, 1.0])
        assert width == 2
        padded = pooling.padded(hidden, tokens, mask, position)
        packed = pooling.packed(hidden[mask], tokens[mask], mask.sum(1), position)
        torch.testing.assert_close(padded, torch.tensor(expected[name]))
        torch.testing.assert_close(packed, torch.tensor(expected[name]))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("median", "encoder.pooling=median is not one of cls, mean, last, weighted_mean, idf"),
        ("mean+max", "encoder.pooling=mean.max is not one of"),
        (f"{HERE}:Missing", "has no Missing"),
        (f"{HERE}:Lacking", "it has no packed, token_read"),
        (f"{HERE}:Unlike", "packed and padded give different vectors"),
        (f"{HERE}:Misread", "it reads other tokens than token_read states"),
        (f"{HERE}:Whole", r"shape \(3, 4, 32\)"),
    ],
)
def test_what_is_no_pooling_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        make_pooling(name, 32, 99)
    assert "encoder.pooling" in str(caught.value) and "\n" not in str(caught.value)


def test_code_that_a_checkpoint_names_is_imported_only_if_the_settings_name_it(tmp_path: Path) -> None:
    path = f"{HERE}:Learned"
    model = tiny_model(tmp_path / "encoder", pooling=path, projection_dim=5)
    model.save(tmp_path / "model")
    settings: Any = tmp_path / "model" / "encoder_settings.json"
    for given in (None, EncoderSettings(), EncoderSettings(pooling=f"{HERE}:Unlike")):
        with pytest.raises(CheckpointError, match=f"a file may not name code.*set encoder.pooling={path}"):
            BiEncoder.load(tmp_path / "model", settings=given)
    assert path in settings.read_text()
    loaded = BiEncoder.load(tmp_path / "model", settings=EncoderSettings(pooling=path)).double()
    assert any(name.endswith("pooling.scorer.weight") for name in loaded.weights())
    vectors = [each.encode_questions(["ba be bi", "bo"]) for each in (loaded, model)]
    np.testing.assert_allclose(*vectors, atol=1e-6)


def test_the_help_explains_every_pooling() -> None:
    (explained,) = (each for each in settings(EncoderSettings) if each.key == "pooling")
    assert list(explained.rule.choices) == list(POOLINGS)
    assert set(POOLINGS) <= set(re.findall(r"[a-z_0-9]+", explained.doc))
