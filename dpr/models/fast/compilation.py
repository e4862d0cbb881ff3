"""Compiled layers, and activations that are computed again instead of kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError, first_line
from dpr.core.logs import get_logger
from dpr.models.fast.attention import ATTENTION, packed_attention
from dpr.models.trials import layers_of

logger = get_logger(__name__)


def compile_towers(towers: Sequence[Any]) -> None:
    """Compiles every layer of towers for any number of tokens, except a last layer that computes one token
    per sequence.

    Tried on a few tokens with a whole forward and backward. If that fails (no C++ compiler, ...) nothing is
    compiled, with one warning. The names of the weights stay the same.
    """
    from transformers import AttentionInterface

    # A pruned layer ends in an exception half-way through its forward, which a compiled one could not.
    layers = [
        layer
        for tower in towers
        for layer in layers_of(tower.backbone)[: -1 if tower.fast.prunes_last_layer else None]
    ]
    # Attention is not compiled: its loops over buckets would be compiled again for every batch.
    AttentionInterface.register(ATTENTION, torch.compiler.disable(packed_attention))
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        for tower in towers:
            _try(tower)
    except Exception as error:
        for layer in layers:
            layer._compiled_call_impl = None
        logger.warning("train.compile=true does not work here and is left out (%s)", first_line(error))


def checkpoint_activations(towers: Sequence[Any]) -> None:
    """Makes towers keep only the input of each layer and compute the rest again in backward; gradients stay
    the same.

    Raises:
        ConfigError: a backbone has no such mode.
    """
    for tower in towers:
        if not getattr(tower.backbone, "supports_gradient_checkpointing", False):
            raise ConfigError(
                f"train.gradient_checkpointing=true: {type(tower.backbone).__name__} has no such mode; set it"
                " to false"
            )
        options: dict[str, Any] = {"use_reentrant": False}
        if tower.adapter is not None:
            # The function is called in forward. In backward the adapter of the tower that ran last would
            # still be active.
            options["context_fn"] = tower.adapter.contexts
        # the name in later transformers 5
        renamed = getattr(tower.backbone, "activation_checkpointing_enable", None)
        (renamed or tower.backbone.gradient_checkpointing_enable)(options)


def _try(tower: Any) -> None:
    training = tower.training
    tower.train()
    device = next(tower.parameters()).device
    try:
        for lengths in ([7, 5], [9, 4, 3]):
            tower(TokenBatch.from_lists([[1] * length for length in lengths]).to(device)).sum().backward()
    finally:
        tower.train(training)
        tower.zero_grad(set_to_none=True)
