"""The arithmetic of a tower, for shares of what a device could do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpr.models.encoder import Encoder
from dpr.models.trials import layers_of


class TowerCost:
    """Floating-point operations of one training pass of a tower over real tokens.

    Two for each weight of a linear layer and token, and the two products of attention (over the whole
    sequence); backward is twice forward, once for weights that are frozen under trained ones, and a frozen
    tower has none. In a last layer that is read at one token, the other tokens need only keys and values.
    Work that no vector needs, or that is repeated to save memory, is not counted.
    """

    def __init__(self, tower: Encoder) -> None:
        is_trained = any(parameter.requires_grad for parameter in tower.parameters())
        frozen = _linear_weights(tower.backbone, trained=False) / max(_linear_weights(tower.backbone), 1)
        passes = 3 - frozen if is_trained else 1
        layers, width = int(getattr(tower.config, "num_hidden_layers", 0)), int(tower.config.hidden_size)
        of_tokens, of_sequences, keys = _linear_weights(tower.backbone), 0, 0
        if tower.fast.prunes_last_layer:
            of_sequences, keys, layers = (
                _linear_weights(layers_of(tower.backbone)[-1]) - 2 * width * width,
                2 * width,
                layers - 1,
            )
        self._per_token, self._per_sequence = (
            passes * 2.0 * (of_tokens - of_sequences + keys),
            passes * 2.0 * of_sequences,
        )
        self._per_pair = (3 if is_trained else 1) * 4.0 * layers * width

    def of(self, lengths: Tensor) -> float:
        """The operations for sequences with these lengths (N,)."""
        exact = lengths.to(torch.float64)
        return (
            self._per_token * float(exact.sum())
            + self._per_sequence * len(lengths)
            + self._per_pair * float(exact.square().sum())
        )


def _linear_weights(module: nn.Module, *, trained: bool | None = None) -> int:
    """Weights of linear layers: all, or those that are ``trained`` or not."""
    weights = (part.weight for part in module.modules() if isinstance(part, nn.Linear))
    return sum(weight.numel() for weight in weights if trained in (None, weight.requires_grad))
