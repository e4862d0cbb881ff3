"""Packed attention in training: windows, dropout, shared key heads, and which backbones the trial accepts."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma3TextConfig, ModernBertConfig, ModernBertDecoderConfig

from dpr.models.backbones import backbone_from_config
from dpr.models.encoder import Encoder
from dpr.models.fast.attention import AttentionOptions, PackedLayout
from dpr.models.fast.cpu_modules import draw_bits, keep_mask, keep_scale
from dpr.models.properties import trial
from tests.helpers.varlen import on_any_device
from tests.unit.models.fast.test_packing import SMALL, batch_of

TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODERN = SMALL | TOKENS | {"cls_token_id": 1, "sep_token_id": 2}
MODERN |= {"local_attention": 8, "global_attn_every_n_layers": 2}
GEMMA = SMALL | TOKENS | {"head_dim": 16, "use_bidirectional_attention": True}
GEMMA["layer_types"] = ["sliding_attention", "full_attention"]
WINDOWED: dict[str, Any] = {
    "modernbert": ModernBertConfig(**MODERN),
    "gemma, one key head": Gemma3TextConfig(**GEMMA, num_key_value_heads=1, sliding_window=8),
}


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_window_that_leaves_padding_without_keys_has_finite_gradients(name: str, dropout: float) -> None:
    """Padding of the shorter sequences lies farther from every real token than the window reaches."""
    torch.manual_seed(0)
    tower = Encoder(backbone_from_config(WINDOWED[name], dropout=dropout), pooling="mean").train()
    assert tower.is_packed
    tower(batch_of([40, 12, 3])).square().sum().backward()
    gradients = {key: value.grad for key, value in tower.named_parameters() if value.grad is not None}
    assert not [key for key, gradient in gradients.items() if not gradient.isfinite().all()]
    words = "embed_tokens" if "gemma" in name else "embeddings.tok_embeddings"
    assert float(gradients[f"backbone.{words}.weight"].norm()) > 0


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_queries", ["all", "one"])
def test_windows_with_dropout_are_softmax_then_dropout_then_values(
    window: int | None, causal: bool, num_queries: str
) -> None:
    """Against every sequence by itself, in values and in gradients, with the same masks of dropout."""
    lengths, longest, heads = [9, 6, 2], 9, 2
    size = 1, heads, sum(lengths), 4
    states = [torch.randn(size, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    position = torch.tensor([8, 1, 0])
    starts = torch.tensor([0, 9, 15])
    layout = PackedLayout.build(lengths, torch.device("cpu"))
    options = AttentionOptions(0.3, 0.5, window, causal)

    def packed() -> Tensor:
        if num_queries == "all":
            return layout.attend(*states, options)[0]
        return layout.attend(states[0][:, :, starts + position], *states[1:], options, position)[0]

    def plain() -> Tensor:
        queries = longest if num_queries == "all" else 1
        shape = len(lengths), heads, queries, longest
        bits = draw_bits(torch.Size([len(lengths) * heads, queries, longest])).view(shape)
        keep = keep_mask(bits, 0.3, torch.float64) * keep_scale(0.3)
        outputs = []
        for row, (start, length) in enumerate(zip(starts.tolist(), lengths, strict=True)):
            q, k, v = (part[0, :, start : start + length] for part in states)
            places = torch.arange(length) if num_queries == "all" else position[row : row + 1]
            scores = q[:, places] @ k.transpose(1, 2) * 0.5
            behind = places[:, None] - torch.arange(length)
            if window is not None:
                scores = scores.masked_fill(behind.abs() >= window, -torch.inf)
            if causal:
                scores = scores.masked_fill(behind < 0, -torch.inf)
            dropped = scores.softmax(-1) * keep[row][:, : len(places), :length]
            outputs.append((dropped @ v).transpose(0, 1))
        return torch.cat(outputs)

    results = []
    for compute in (packed, plain):
        torch.manual_seed(5)
        outputs = compute()
        weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view(outputs.shape)
        results.append((outputs, *torch.autograd.grad((outputs * weights).sum(), states)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("deviation", [0.02, 1e-4, 1e-6])
def test_causal_attention_that_does_not_say_so_is_never_packed(deviation: float) -> None:
    torch.manual_seed(0)
    config = ModernBertDecoderConfig(**MODERN, initializer_range=deviation, initializer_cutoff_factor=2.0)
    backbone: Any = backbone_from_config(config)
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=deviation)
    before = copy.deepcopy(backbone.state_dict())
    assert Encoder(copy.deepcopy(backbone), pooling="mean").is_packed
    backbone.set_attn_implementation("sdpa")
    for module in backbone.modules():
        if hasattr(module, "is_causal"):
            del module.is_causal
    assert not Encoder(backbone, pooling="mean").is_packed
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


@pytest.mark.parametrize("kind", ["packed", "padded", "varlen"])
def test_cudnn_which_plans_every_new_shape_is_left_out(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[bool] = []

    def spy(function: Any) -> Any:
        def spied(*arguments: Any, **options: Any) -> Any:
            allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
            return function(*arguments, **options)

        return spied

    before = torch.backends.cuda.cudnn_sdp_enabled()
    attention = "varlen" if kind == "varlen" else "sdpa"
    tower = Encoder(backbone_from_config(WINDOWED["modernbert"], dropout=0.0), attention=attention)
    sdpa = "scaled_dot_product_attention"
    monkeypatch.setattr(torch.nn.functional, sdpa, spy(getattr(torch.nn.functional, sdpa)))
    batch = batch_of([9, 5, 3])
    with on_any_device(monkeypatch, dtypes=(torch.float32,)), monkeypatch.context() as inside:
        inside.setattr("torch.nn.attention.varlen.varlen_attn", spy(torch.nn.attention.varlen.varlen_attn))
        if kind == "padded":
            ids, mask = batch.padded(0)
            tower.backbone(input_ids=ids, attention_mask=mask)
        else:
            tower(batch)
    assert allowed and not any(allowed)
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_a_window_of_another_reach_is_never_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial's sequences are longer than the window, which shows how far it reaches."""
    original = AttentionOptions.mask
    assert Encoder(backbone_from_config(WINDOWED["modernbert"]), pooling="mean").is_packed
    shorter = lambda self, *where: original(self._replace(window=self.window - 1), *where)
    monkeypatch.setattr(AttentionOptions, "mask", shorter)
    wide = ModernBertConfig(**{**MODERN, "local_attention": 40})
    assert not Encoder(backbone_from_config(wide), pooling="mean").is_packed


def test_a_trial_leaves_weights_and_mode_as_they_were_even_if_it_fails() -> None:
    backbone: Any = backbone_from_config(WINDOWED["modernbert"]).train()
    before = copy.deepcopy(backbone.state_dict())

    def fail() -> None:
        with trial(backbone):
            assert not backbone.training
            assert any(not torch.equal(value, before[key]) for key, value in backbone.state_dict().items())
            raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        fail()
    assert backbone.training
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())
