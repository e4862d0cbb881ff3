"""The last layer computes only the token that is read; vectors and gradients stay the same."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from transformers import AlbertConfig

from dpr.core.batch import plan_buckets
from dpr.models.backbones import backbone_from_config
from dpr.models.encoder import Encoder
from dpr.models.fast import attention
from dpr.models.fast.last_layer import enable_pruning
from tests.helpers.training import assert_near, encoded
from tests.unit.models.fast.test_packing import CONFIGS, LENGTHS, SMALL, batch_of


def tower_of(name: str, pooling: str = "cls") -> Encoder:
    torch.manual_seed(0)
    return Encoder(backbone_from_config(CONFIGS[name], dropout=0.0), pooling=pooling).double()


def widest_products(tower: Encoder) -> list[int]:
    """Tokens that every forward brings to the last linear layer of the backbone, pack by pack."""
    seen: list[int] = []
    linear = [module for module in tower.backbone.modules() if isinstance(module, nn.Linear)][-1]
    linear.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[1]))
    return seen


@pytest.mark.parametrize("min_unpadded", [10, 1000])
@pytest.mark.parametrize("name", CONFIGS)
def test_reading_one_token_equals_reading_it_from_all(
    name: str, min_unpadded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpr.models.fast.packed.CPU_UNPADDED", min_unpadded)
    monkeypatch.setattr("dpr.models.fast.packed.CPU_FORWARD_TOKENS", 60)
    monkeypatch.setattr(attention, "plan_buckets", partial(plan_buckets, min_tokens=10))
    tower, batch = tower_of(name).train(min_unpadded > max(LENGTHS)), batch_of(LENGTHS)
    assert tower.fast.prunes_last_layer
    seen, found = widest_products(tower), encoded(tower, batch)
    assert sum(seen) == len(LENGTHS), "the last layer computed other tokens as well"
    tower.fast = replace(tower.fast, prunes_last_layer=False)
    seen.clear()
    assert_near(found, encoded(tower, batch), 1e-11)
    assert sum(seen) == sum(LENGTHS)


def test_a_copy_reads_with_its_own_weights() -> None:
    tower, batch = tower_of("bert"), batch_of(LENGTHS)
    twin, before = copy.deepcopy(tower), tower(batch)
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.mul_(1.1)
    assert twin.fast.prunes_last_layer
    torch.testing.assert_close(twin(batch), before, rtol=0, atol=0)


def test_a_layer_that_is_called_several_times_stays_whole() -> None:
    torch.manual_seed(0)
    backbone = backbone_from_config(AlbertConfig(**SMALL, embedding_size=32), dropout=0.0)
    packed, padded = Encoder(copy.deepcopy(backbone)).double(), Encoder(backbone, packed=False).double()
    assert packed.is_packed and not packed.fast.prunes_last_layer
    assert not any(module._forward_pre_hooks for module in packed.modules())
    torch.testing.assert_close(packed(batch_of(LENGTHS)), padded(batch_of(LENGTHS)), rtol=0, atol=1e-6)


def test_a_last_layer_that_mixes_tokens_beside_its_attention_stays_whole() -> None:
    torch.manual_seed(0)
    backbone = backbone_from_config(CONFIGS["bert"], dropout=0.0)
    final = backbone.encoder.layer[-1].output.LayerNorm

    def of_its_neighbour(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return output + 0.1 * output.roll(1, dims=1)

    assert Encoder(copy.deepcopy(backbone)).fast.prunes_last_layer
    # As after packing was found to be sound: the trial of the last layer has to see it by itself.
    final.register_forward_hook(of_its_neighbour)
    attention.register()
    backbone.set_attn_implementation(attention.ATTENTION)
    assert not enable_pruning(backbone, 0)
    assert not backbone.encoder.layer[-1]._forward_pre_hooks
