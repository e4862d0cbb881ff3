"""Dropout with cheap masks is dropout: right share, right mean, right gradient, decided by the seed."""

import math

import pytest
import torch
from torch import Tensor, nn

from dpr.models.fast.attention import dot_product_attention
from dpr.models.fast.cpu_modules import Dropout, draw_bits, keep_mask, keep_scale, replace_dropout


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.003])
def test_as_many_values_are_dropped_as_asked_and_the_mean_stays(probability: float) -> None:
    torch.manual_seed(0)
    count = 1 << 21
    outputs = Dropout(probability)(torch.ones(count))
    share = float((outputs == 0).float().mean())
    assert abs(share - probability) < 5 * math.sqrt(probability / count) + 1 / 65536
    assert abs(float(outputs.mean()) - 1) < 5 * math.sqrt(probability / (1 - probability) / count)
    assert outputs[outputs != 0].unique().tolist() == [pytest.approx(keep_scale(probability))]


def test_masks_of_neighbours_calls_and_bit_positions_are_independent() -> None:
    torch.manual_seed(0)
    first, second = (keep_mask(draw_bits(torch.Size([1 << 20])), 0.5, torch.float32) - 0.5 for _ in range(2))
    bound = 5 * 0.25 / math.sqrt(1 << 20)
    assert abs(float((first * second).mean())) < bound
    for distance in range(1, 9):  # four values share one random word
        assert abs(float((first[distance:] * first[:-distance]).mean())) < bound
    for part in range(4):
        assert abs(float(first[part::4].mean())) < 2 * bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_gradient_passes_where_the_value_did(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    states = torch.randn(64, 33, dtype=dtype, requires_grad=True)
    outputs = Dropout(0.2)(states)
    assert outputs.dtype == dtype
    outputs.backward(torch.ones_like(outputs))
    assert states.grad is not None
    torch.testing.assert_close(states.grad * states.detach(), outputs.detach())


def test_evaluation_and_probabilities_at_the_ends_are_those_of_torch() -> None:
    states = torch.randn(50)
    assert torch.equal(Dropout(0.5).eval()(states), states)
    assert torch.equal(Dropout(0.0)(states), states)
    assert not Dropout(1.0)(states).any()


def test_every_dropout_of_a_backbone_is_replaced_and_keeps_its_probability() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.3), nn.Dropout1d(0.1)))
    replace_dropout(module)
    kinds = " ".join(type(part).__name__ for part in module.modules())
    assert kinds == "Sequential Linear Sequential Dropout Dropout1d"
    assert isinstance(module[1][0], Dropout) and module[1][0].p == 0.3


@pytest.mark.parametrize("queries", [7, 1])
@pytest.mark.parametrize("mask", ["none", "lengths", "band"])
def test_attention_with_dropout_is_softmax_then_dropout_then_values(mask: str, queries: int) -> None:
    torch.manual_seed(0)
    drawn = [torch.randn(3, length, 2, 4, dtype=torch.float64) for length in (queries, 7, 7)]
    q, k, v = (part.transpose(1, 2).requires_grad_() for part in drawn)
    allowed = {
        "none": None,
        "lengths": (torch.arange(7) < torch.tensor([7, 5, 2])[:, None])[:, None, None, :],
        "band": ((torch.arange(queries)[:, None] - torch.arange(7)).abs() < 3)[None, None],
    }[mask]

    def plain() -> Tensor:
        scores = q @ k.transpose(-1, -2) * 0.5
        weights = (scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)).softmax(-1)
        keep = keep_mask(draw_bits(torch.Size([6, queries, 7])), 0.3, torch.float64).view(3, 2, queries, 7)
        return (weights * keep * keep_scale(0.3)) @ v

    results = []
    for mix in (lambda: dot_product_attention(q, k, v, allowed, 0.3, 0.5), plain):
        torch.manual_seed(11)
        outputs = mix()
        weights = torch.linspace(-1, 1, outputs.numel()).view(outputs.shape)
        results.append((outputs, *torch.autograd.grad((outputs * weights).sum(), (q, k, v))))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_autocast_drops_the_same_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own attention with dropout is 2.5 times as slow there and keeps weights and mask in fp32."""
    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", lambda *_, **__: pytest.fail("SDPA"))
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, 7, 4, requires_grad=True) for _ in range(3))
    allowed = (torch.arange(7) < torch.tensor([7, 5, 2])[:, None])[:, None, None, :]
    results = []
    for is_enabled in (False, True):
        torch.manual_seed(11)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_enabled):
            outputs = dot_product_attention(q, k, v, allowed, 0.3, None)
        assert outputs.dtype == (torch.bfloat16 if is_enabled else torch.float32)
        weights = torch.linspace(-1, 1, outputs.numel()).view(outputs.shape)
        gradients = torch.autograd.grad((outputs.float() * weights).sum(), (q, k, v))
        results.append((outputs.float(), *gradients))
    for exact, ours in zip(*results, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, exact, rtol=0.05, atol=0.03)
        assert (ours - exact).abs().max() > 0, "or it was not in bf16"
