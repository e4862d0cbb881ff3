"""A backbone without layers: the state of a token is its row of a table, whatever the other tokens are.

Its config is a model family of transformers (``model_type`` static), which importing this module registers;
``dpr.models.backbones`` does so before it reads a config. The backbone itself is not a model class of
transformers, because importing these takes most of the time that a static encoder needs to open.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig

MODEL_TYPE = "static"


class StaticConfig(PretrainedConfig):
    """Config of a table of ``vocab_size`` rows of ``hidden_size``, whose initial values are normally
    distributed with the standard deviation ``initializer_range``."""

    model_type = MODEL_TYPE

    def __init__(
        self,
        vocab_size: int = 30000,
        hidden_size: int = 512,
        pad_token_id: int | None = 0,
        initializer_range: float = 0.1,
        **others: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.initializer_range = initializer_range
        self.pad_token_id = pad_token_id
        super().__init__(**others)


class States(NamedTuple):
    """States (N, L, D) of tokens, by the name in transformers' outputs."""

    last_hidden_state: Tensor


class StaticBackbone(nn.Module):
    """A table and its look-up. Its gradient holds only the rows that were read
    (``dpr.training.optimizer``)."""

    def __init__(self, config: StaticConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab_size, config.hidden_size, sparse=True)
        nn.init.normal_(self.words.weight, std=config.initializer_range)

    @property
    def device(self) -> torch.device:
        return self.words.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.words.weight.dtype

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> States:
        """Returns the states of ``input_ids`` (N, L)."""
        return States(self.words(input_ids))


def static_if_layerless(backbone: Any) -> Any:
    """Returns a GPT without layers and positions, the form in which static encoders are exported, as a
    ``StaticBackbone``, and any other backbone unchanged."""
    config = backbone.config
    if config.model_type != "openai-gpt" or config.n_layer or bool(backbone.positions_embed.weight.any()):
        return backbone
    static = StaticBackbone(StaticConfig(config.vocab_size, config.n_embd, config.pad_token_id))
    static.words.weight = nn.Parameter(backbone.tokens_embed.weight.detach())
    return static.train(backbone.training)


AutoConfig.register(MODEL_TYPE, StaticConfig, exist_ok=True)
