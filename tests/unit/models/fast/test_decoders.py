"""Packed decoders encode each sequence as if it were alone; each family is compared with its own attention."""

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from dpr.core.batch import TokenBatch
from dpr.models.backbones import backbone_from_config
from dpr.models.encoder import Encoder, checkpoint_activations
from dpr.models.fast import varlen
from tests.helpers.training import assert_near, encoded
from tests.helpers.varlen import on_any_device
from tests.unit.models.fast.test_packing import LENGTHS, SMALL, TOKENS, batch_of

SIZES = SMALL | TOKENS | {"num_hidden_layers": 3, "num_attention_heads": 4}
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 100, "n_positions": 80}
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 2}
HEADS: dict[str, Any] = {**GROUPED, "head_dim": 16}
MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 8}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, one key head": ("Llama", GROUPED | {"num_key_value_heads": 1}),
    "mistral, window": ("Mistral", GROUPED | {"sliding_window": 8}),
    "qwen2, windows": ("Qwen2", GROUPED | MIXED | {"use_sliding_window": True}),
    "qwen3": ("Qwen3", HEADS),
    "qwen3, windows": ("Qwen3", HEADS | MIXED | {"use_sliding_window": True}),
    "qwen3, bidirectional": ("Qwen3", HEADS | {"is_causal": False}),
    "gemma": ("Gemma", HEADS),
    "gemma3": ("Gemma3Text", HEADS | MIXED),
    "gemma3, bidirectional": ("Gemma3Text", HEADS | MIXED | {"use_bidirectional_attention": True}),
    "phi3, window": ("Phi3", GROUPED | {"sliding_window": 8}),
    "modernbert": ("ModernBertDecoder", SIZES | {"local_attention": 8, "global_attn_every_n_layers": 2}),
    "gpt_neox": ("GPTNeoX", SIZES),
    "gpt2": ("GPT2", GPT2 | {"bos_token_id": 1, "eos_token_id": 2}),
}


def config_of(name: str) -> Any:
    kind, values = FAMILIES[name]
    return getattr(transformers, f"{kind}Config")(**values)


def tower_of(config: Any, *, pooling: str = "last", **options: Any) -> Encoder:
    """In float64, with weights large enough that every layer shows."""
    torch.manual_seed(0)
    backbone: Any = backbone_from_config(config, dropout=0.0)
    with torch.no_grad():
        for weight in backbone.parameters():
            if weight.dim() == 2:
                weight.normal_(std=weight.shape[1] ** -0.5)
    return Encoder(backbone.double(), pooling=pooling, **options)


def alone(tower: Encoder, batch: TokenBatch) -> Tensor:
    """Vectors of sequences that go through the padded forward one by one."""
    return torch.cat([tower(batch.select(torch.tensor([row]))) for row in range(len(batch))])


def gradients(tower: Encoder, vectors: Tensor) -> dict[str, Tensor]:
    tower.zero_grad()
    (vectors * torch.linspace(-1, 1, vectors.numel(), dtype=vectors.dtype).view_as(vectors)).sum().backward()
    return {name: value.grad.clone() for name, value in tower.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("pooling", "tokens"), [("last", 60), ("mean", 10_000)])
def test_packed_is_one_by_one(name: str, pooling: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpr.models.fast.packed.CPU_FORWARD_TOKENS", tokens)
    packed = tower_of(config_of(name), pooling=pooling)
    padded = tower_of(config_of(name), pooling=pooling, packed=False)
    padded.load_state_dict(packed.state_dict())
    assert packed.is_packed
    # GPT-2 counts on a state for every token.
    assert packed.fast.prunes_last_layer == (pooling == "last" and name != "gpt2")
    batch = batch_of(LENGTHS)
    found, expected = packed(batch), alone(padded, batch)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    mine, theirs = gradients(packed, found), gradients(padded, expected)
    assert mine.keys() == theirs.keys()
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    worst = max(float((mine[key] - theirs[key]).abs().max()) for key in theirs)
    # Norms compute in float32, all else in float64.
    assert worst < 2 * torch.finfo(torch.float32).eps * largest


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("name", ["llama, one key head", "qwen3, windows", "gemma3, bidirectional"])
def test_varlen_attention_gets_what_is_seen(name: str, pooling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tower, batch = tower_of(config_of(name), pooling=pooling), batch_of(LENGTHS)
    expected = encoded(tower, batch)
    tower.fast = replace(tower.fast, attention="varlen")
    with on_any_device(monkeypatch, dtypes=(torch.float64,)) as calls:
        found = encoded(tower, batch)
    windows = {
        "llama, one key head": [(-1, 0)] * 3,
        "qwen3, windows": [(7, 0), (-1, 0), (7, 0)],
        "gemma3, bidirectional": [(4, 4), (-1, -1), (4, 4)],
    }
    assert [call.window for call in calls] == windows[name][: 2 if pooling == "last" else 3]
    torch.testing.assert_close(found["vectors"], expected["vectors"], rtol=0, atol=1e-11)
    assert_near(found, expected, 1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("attention", "pooling"), [("sdpa", "mean"), ("varlen", "last")])
def test_nobody_waits(name: str, attention: str, pooling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device, which has shapes and no values, so that whoever asks it for one fails."""
    monkeypatch.setattr(varlen, "device_lacks", lambda device: None)
    backbone = backbone_from_config(config_of(name), dropout=0.0)
    tower = Encoder(backbone, pooling=pooling, attention=attention).to(torch.bfloat16)
    tower.to("meta")(batch_of(LENGTHS).to("meta")).sum().backward()


def test_capped_scores_are_padded_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = transformers.Gemma2Config(**HEADS, sliding_window=8)
    with caplog.at_level(logging.WARNING):
        towers = [tower_of(config) for _ in range(2)]
    assert [record.getMessage() for record in caplog.records] == [
        "Gemma2Model cannot be packed (its attention has a softcap); its batches are padded to the longest"
        " sequence"
    ]
    assert not towers[0].is_packed
    found, expected = towers[0].float()(batch_of(LENGTHS)), alone(towers[1].float(), batch_of(LENGTHS))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_states_that_pass_from_one_sequence_to_the_next_are_never_packed() -> None:
    """A convolution over the pack would mix the end of a sequence into the beginning of the next."""
    layers = {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}
    config = transformers.Lfm2Config(**GROUPED | layers)
    assert not tower_of(config).is_packed


def test_an_end_token_that_fills_batches_up_is_still_read() -> None:
    """Qwen3's end of text is its padding; which tokens are real follows from lengths, never from ids."""
    config = config_of("qwen3")
    config.pad_token_id = config.eos_token_id = 99
    batch = TokenBatch.from_lists([[5, 6, 7, 99], [5, 99], [99], [8] * 20 + [99]])
    packed, padded = tower_of(config), tower_of(config, packed=False)
    found, expected = packed(batch), alone(padded, batch)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(padded(batch), expected, rtol=0, atol=1e-14)
    without = packed(TokenBatch.from_lists([[5, 6, 7]]))
    assert float((found[0] - without[0]).detach().abs().max()) > 0.1


@pytest.mark.parametrize("name", ["llama, one key head", "qwen3, windows", "gpt2"])
def test_dropout_and_checkpointed_activations(name: str) -> None:
    """The same masks give the same gradient, and attention dropout is on."""
    torch.manual_seed(0)
    tower = Encoder(backbone_from_config(config_of(name), dropout=0.1), pooling="last").double().train()
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(encoded(tower, batch_of(LENGTHS)))
        checkpoint_activations([tower])
    assert torch.equal(results[0]["vectors"], results[1]["vectors"])
    assert not torch.equal(results[0]["vectors"], tower(batch_of(LENGTHS)))
    assert_near(results[1], results[0], 1e-6)


def test_nothing_is_kept_for_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(*_: Any, **__: Any) -> None:
        raise AssertionError("keys and values of a text are of no use once it has a vector")

    monkeypatch.setattr(transformers.DynamicCache, "__init__", kept)
    for packed in (True, False):
        tower_of(config_of("qwen3"), packed=packed)(batch_of(LENGTHS))
