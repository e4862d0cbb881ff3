"""Packed equals padded for every backbone that can be packed, in training and where the last layer computes one token alone."""

import copy
import itertools
import logging
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    Gemma3TextConfig,
    ModernBertConfig,
    ModernBertDecoderConfig,
    MPNetConfig,
    RobertaConfig,
)

from dpr.core.batch import TokenBatch, plan_buckets
from dpr.models.backbones import backbone_from_config
from dpr.models.encoder import Encoder
from dpr.models.fast import attention
from dpr.models.fast.attention import AttentionOptions, PackedLayout
from dpr.models.fast.cpu_modules import draw_bits, keep_mask, keep_scale
from dpr.models.fast.last_layer import enable_pruning
from dpr.models.properties import trial
from tests.helpers.training import assert_near, encoded
from tests.helpers.varlen import on_any_device

SMALL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 80}
SMALL |= {"num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 100}
TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODERN = SMALL | TOKENS | {"cls_token_id": 1, "sep_token_id": 2}
MODERN |= {"local_attention": 8, "global_attn_every_n_layers": 2}
CONFIGS = {
    "bert": BertConfig(**SMALL),
    "roberta": RobertaConfig(**SMALL),
    "distilbert": DistilBertConfig(
        dim=32, n_layers=2, n_heads=2, hidden_dim=64, vocab_size=100, max_position_embeddings=80
    ),
    "electra": ElectraConfig(**SMALL, embedding_size=32),
    "modernbert": ModernBertConfig(**MODERN),
}
LENGTHS = [1, 40, 7, 7, 3, 25, 40, 2, 12]


def batch_of(lengths: list[int], seed: int = 0) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)
    sequences = [torch.randint(5, 100, (length,), generator=generator).tolist() for length in lengths]
    return TokenBatch.from_lists(sequences, [length // 2 for length in lengths])


def both(name: str, pooling: str, dtype: torch.dtype = torch.float64) -> tuple[Encoder, Encoder]:
    torch.manual_seed(0)
    backbone = backbone_from_config(CONFIGS[name], dropout=0.0)
    packed = Encoder(copy.deepcopy(backbone), pooling=pooling, projection_dim=5).to(dtype)
    padded = Encoder(backbone, pooling=pooling, projection_dim=5, packed=False).to(dtype)
    padded.load_state_dict(packed.state_dict())
    assert packed.is_packed
    assert not padded.is_packed
    return packed, padded


@pytest.mark.parametrize("min_unpadded", [10, 1000])
@pytest.mark.parametrize(("name", "pooling"), list(itertools.product(CONFIGS, ["cls", "mean"])))
def test_packed_equals_padded_in_vectors_and_gradients(
    name: str, pooling: str, min_unpadded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpr.models.fast.packed.CPU_FORWARD_TOKENS", 60)
    monkeypatch.setattr("dpr.models.fast.packed.CPU_UNPADDED", min_unpadded)
    monkeypatch.setattr(attention, "plan_buckets", partial(plan_buckets, min_tokens=10))
    packed, padded = both(name, pooling)
    packed.train(min_unpadded > max(LENGTHS))
    expected = encoded(padded, batch_of(LENGTHS))
    assert_near(encoded(packed, batch_of(LENGTHS)), expected, 1e-6)
    assert max(float(tensor.norm()) for name, tensor in expected.items() if name != "vectors") > 1e-3


@pytest.mark.parametrize("lengths", [[5], [4, 4, 4], [1, 1], [64, 1]])
def test_packs_of_one_sequence_equal_lengths_and_extremes(lengths: list[int]) -> None:
    packed, padded = both("bert", "cls")
    torch.testing.assert_close(packed(batch_of(lengths)), padded(batch_of(lengths)), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("hidden", "attention"), [(0.3, 0.0), (0.0, 0.5)], ids=["hidden", "attention"])
def test_dropout_has_the_distribution_that_it_has_padded(hidden: float, attention: float) -> None:
    """Compares mean and variance of each element over many copies of three sequences."""
    copies, lengths = 2000, [12, 7, 3]
    torch.manual_seed(0)
    config = BertConfig(**SMALL, hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention)
    backbone = backbone_from_config(config)
    towers = [Encoder(copy.deepcopy(backbone), packed=True).train(), Encoder(backbone, packed=False).train()]
    one = batch_of(lengths)
    many = TokenBatch(one.tokens.repeat(copies), one.lengths.repeat(copies), one.position.repeat(copies))
    with torch.no_grad():
        packed, padded = (tower(many).view(copies, len(lengths), -1).double() for tower in towers)
    variances = [vectors.var(0) for vectors in (packed, padded)]
    assert float(variances[1].min()) > 1e-8
    error = ((variances[0] + variances[1]) / copies).sqrt()
    assert float(((packed.mean(0) - padded.mean(0)) / error).abs().max()) < 5
    # The logarithm of a ratio of two variances of normal values has a standard error of sqrt(4 / copies).
    assert float((variances[0] / variances[1]).log().abs().max()) < 6 * (4 / copies) ** 0.5


def test_other_backbones_are_padded_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        towers = [Encoder(backbone_from_config(MPNetConfig(**SMALL))).eval() for _ in range(2)]
    assert [record.getMessage() for record in caplog.records] == [
        "MPNetModel cannot be packed (its attention cannot be replaced); its batches are padded to the"
        " longest sequence"
    ]
    assert not towers[0].is_packed
    batch = batch_of([6, 3])
    alone = towers[0](batch.select(torch.tensor([1])))
    torch.testing.assert_close(towers[0](batch)[1], alone[0], rtol=0, atol=1e-5)


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
def test_one_token_equals_that_of_all(name: str, min_unpadded: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_windows_with_dropout_are_as_written_out(window: int | None, causal: bool, num_queries: str) -> None:
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
