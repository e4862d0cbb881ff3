"""A backbone without layers: the state of a token is its row of a table, whatever the other tokens are.

transformers treats it as a model family (``model_type`` static), which is made, loaded and saved like any
other. Importing this module registers the family; ``dpr.models.backbones`` does so before it reads a config.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

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


class StaticBackbone(PreTrainedModel):
    """A table and its look-up. Its gradient holds only the rows that were read
    (``dpr.training.optimizer``)."""

    config_class = StaticConfig

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.hidden_size, sparse=True)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        """Returns states (N, L, D) for ``input_ids`` (N, L)."""
        return BaseModelOutput(last_hidden_state=self.words(input_ids))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)


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
AutoModel.register(StaticConfig, StaticBackbone, exist_ok=True)
