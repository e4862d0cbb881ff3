"""On a GPU windows of attention give finite gradients, packed and padded, where padding lies beyond the reach
of every token."""

import itertools

import pytest
import torch

from dpr.core.batch import TokenBatch
from dpr.models.backbones import backbone_from_config
from dpr.models.encoder import Encoder
from tests.unit.models.fast.test_packing import WINDOWED

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("name", "packed", "pooling"), list(itertools.product(WINDOWED, [True, False], ["mean", "last"]))
)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_gradients_are_finite(
    name: str, packed: bool, pooling: str, dtype: torch.dtype | None, dropout: float
) -> None:
    torch.manual_seed(0)
    tower = (
        Encoder(backbone_from_config(WINDOWED[name], dropout=dropout), pooling=pooling, packed=packed)
        .cuda()
        .train()
    )
    assert tower.is_packed == packed
    batch = TokenBatch.from_lists([[7] * length for length in (60, 40, 12, 3)]).to("cuda")
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        vectors = tower(batch)
    vectors.square().mean().backward()
    assert vectors.isfinite().all()
    assert not [
        key
        for key, value in tower.named_parameters()
        if value.grad is not None and not value.grad.isfinite().all()
    ]
