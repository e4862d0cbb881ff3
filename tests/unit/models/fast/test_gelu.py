"""GELU in place has torch's values and gradients; a backbone is tried once, and those like it are as fast."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig

from dpr.core.batch import TokenBatch
from dpr.models.backbones import backbone_from_config
from dpr.models.encoder import Encoder
from dpr.models.fast import cpu_modules, packed
from dpr.models.fast.cpu_modules import Gelu, replace_gelu
from tests.unit.models.fast.test_packing import CONFIGS

CONFIG = CONFIGS["bert"]


class Calls(TorchDispatchMode):
    """The sizes that GELU is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "gelu" in func.name():
            self.sizes.append(args[0].numel())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (1, 37, 64), (2, 1, 8)])
def test_values_are_those_of_torch_in_the_arguments_place(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    states = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0)) * 3
    expected = nn.functional.gelu(states.double())
    with torch.no_grad():
        found = Gelu()(states)
    assert found.data_ptr() == states.data_ptr()
    assert found.shape == shape
    rtol = 0.02 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=2e-6)


def test_large_arguments_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_modules, "_PIECE", 16)
    states = torch.randn(1, 7, 9)
    expected = nn.functional.gelu(states)
    with torch.no_grad():
        torch.testing.assert_close(Gelu()(states), expected)


def test_a_view_with_gaps_is_left_alone() -> None:
    states = torch.randn(4, 10)
    with torch.no_grad():
        before, found = states.clone(), Gelu()(states[:, :5])
    torch.testing.assert_close(found, nn.functional.gelu(before[:, :5]))
    assert torch.equal(states, before)


def test_gradients_pass() -> None:
    states = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Gelu(), (states,))
    assert torch.equal(Gelu()(states), nn.functional.gelu(states))


def test_packs_of_any_size_need_few_kernels() -> None:
    with torch.no_grad(), Calls() as calls:
        for tokens in range(1500, 2048, 7):
            Gelu()(torch.randn(1, tokens, 64))
    assert len(set(calls.sizes)) <= 12
    assert all(size & (size - 1) == 0 for size in calls.sizes)


def test_every_tower_has_it() -> None:
    for config in (CONFIGS["bert"], CONFIGS["modernbert"]):
        tower = Encoder(backbone_from_config(config))
        assert any(isinstance(module, Gelu) for module in tower.modules())
        assert tower.training


def test_a_backbone_that_uses_the_argument_again_keeps_its_own() -> None:
    class Twice(nn.Module):
        def __init__(self, dense: nn.Module) -> None:
            super().__init__()
            self.dense, self.activation = dense, nn.GELU()

        def forward(self, states: Tensor) -> Tensor:
            inner = self.dense(states)
            mixed: Tensor = self.activation(inner) + inner
            return mixed

    backbone: Any = backbone_from_config(CONFIG)
    for layer in backbone.encoder.layer:
        layer.intermediate = Twice(layer.intermediate.dense)
    replace_gelu(backbone)
    assert not any(isinstance(module, Gelu) for module in backbone.modules())
    assert sum(isinstance(module, nn.GELU) for module in backbone.modules()) == CONFIG.num_hidden_layers


@pytest.fixture(autouse=True)
def nothing_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_tried", {})


def made(**changed: Any) -> Any:
    config = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return backbone_from_config(BertConfig(**{**config, "intermediate_size": 32, **changed}), dropout=0.1)


def calls_of(backbone: Any, **options: bool) -> int:
    """Forwards that ``accelerate`` makes."""
    counted = []
    hook = backbone.encoder.layer[0].attention.register_forward_hook(lambda *_: counted.append(1))
    settings = {"packed": True, "reads_one_token": True} | options
    packed.accelerate(backbone, attention="sdpa", **settings)
    hook.remove()
    return len(counted)


def test_the_second_of_a_kind_is_not_tried_and_gives_the_same() -> None:
    first, second = made(), made()
    second.load_state_dict(first.state_dict())
    assert calls_of(first) > 0
    assert calls_of(second) == 0
    assert sum(isinstance(module, Gelu) for module in second.modules()) == 2
    batch = TokenBatch(torch.arange(1, 13), torch.tensor([7, 5]), torch.zeros(2, dtype=torch.int64))
    vectors = [Encoder(backbone).eval()(batch) for backbone in (first, second)]
    assert torch.equal(*vectors)


@pytest.mark.parametrize("change", ["configuration", "module", "attribute", "how"])
def test_another_kind_is_tried_itself(change: str) -> None:
    calls_of(made())
    other = made(hidden_act="relu") if change == "configuration" else made()
    if change == "module":
        other.encoder.layer[1].output.dropout = nn.Identity()
    if change == "attribute":
        other.encoder.layer[1].attention.self.is_causal = True
    assert calls_of(other, packed=change != "how") > 0
