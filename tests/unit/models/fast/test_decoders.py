"""Decoders packed: every sequence as if it were encoded alone, in vectors and in gradients, whatever its attention sees.

Each family is judged by its own attention over one sequence at a time, without any padding.
"""

from __future__ import annotations

import copy
import itertools
import logging
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from dpr.core.batch import TokenBatch
from dpr.models.backbones import backbone_from_config
from dpr.models.encoder import Encoder
from dpr.models.fast import attention
from tests.unit.models.fast.test_packing import LENGTHS, batch_of

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 2}
HEADS: dict[str, Any] = {**GROUPED, "head_dim": 16}
MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 8}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", GROUPED),
    "llama, one key head": ("Llama", GROUPED | {"num_key_value_heads": 1}),
    "mistral": ("Mistral", GROUPED | {"sliding_window": None}),
    "mistral, window": ("Mistral", GROUPED | {"sliding_window": 8}),
    "qwen2": ("Qwen2", GROUPED),
    "qwen2, windows": ("Qwen2", GROUPED | MIXED | {"use_sliding_window": True}),
    "qwen2, bidirectional": ("Qwen2", GROUPED | {"is_causal": False}),
    "qwen3": ("Qwen3", HEADS),
    "qwen3, windows": ("Qwen3", HEADS | MIXED | {"use_sliding_window": True}),
    "qwen3, bidirectional": ("Qwen3", HEADS | {"is_causal": False}),
    "qwen3, bidirectional windows": ("Qwen3", HEADS | MIXED | {"use_sliding_window": True, "is_causal": False}),
    "gemma": ("Gemma", HEADS),
    "gemma3": ("Gemma3Text", HEADS | MIXED),
    "gemma3, bidirectional": ("Gemma3Text", HEADS | MIXED | {"use_bidirectional_attention": True}),
    "phi3": ("Phi3", GROUPED),
    "phi3, window": ("Phi3", GROUPED | {"sliding_window": 8}),
    "olmo2": ("Olmo2", GROUPED),
    "granite": ("Granite", GROUPED),
    "smollm3": ("SmolLM3", GROUPED),
    "starcoder2": ("Starcoder2", GROUPED | {"sliding_window": 8}),
    "modernbert decoder": ("ModernBertDecoder", SIZES | {"local_attention": 8, "global_attn_every_n_layers": 2}),
    "gpt_neox": ("GPTNeoX", SIZES),
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 100, "n_positions": 80, "bos_token_id": 1, "eos_token_id": 2}),
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


@pytest.mark.parametrize(("name", "pooling"), list(itertools.product(FAMILIES, ["last", "mean"])))
@pytest.mark.parametrize("tokens", [60, 10_000], ids=["packs", "one pack"])
def test_packed_equals_one_by_one(name: str, pooling: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpr.models.fast.packed.CPU_FORWARD_TOKENS", tokens)
    packed = tower_of(config_of(name), pooling=pooling)
    padded = tower_of(config_of(name), pooling=pooling, packed=False)
    padded.load_state_dict(packed.state_dict())
    assert packed.is_packed
    assert packed.fast.prunes_last_layer == (pooling == "last" and name != "gpt2"), "GPT-2 counts on a state for every token"
    batch = batch_of(LENGTHS)
    found, expected = packed(batch), alone(padded, batch)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    mine, theirs = gradients(packed, found), gradients(padded, expected)
    assert mine.keys() == theirs.keys()
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    worst = max(float((mine[key] - theirs[key]).abs().max()) for key in theirs)
    print("DIFF", name, pooling, float((found - expected).abs().max()), worst / largest)
    assert worst < 1e-7 * largest, "norms compute in float32, all else in float64"
