"""Towers through ``torch.compile``, with our attention left as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.models.fast.attention import ATTENTION, packed_attention
from dpr.models.trials import layers_of

logger = get_logger(__name__)


def compile_towers(towers: Sequence[Any]) -> bool:
    """Compiles every layer of towers for any number of tokens, but one that computes a token a sequence; returns whether it worked.

    Tried on a few tokens with the whole of forward and backward. Where it fails (no C++ compiler, ...) the layers stay as they were, with
    one warning. Names of weights stay the same.
    """
    # A pruned layer ends in an exception half-way through its forward, which a compiled one could not.
    layers = [layer for tower in towers for layer in layers_of(tower.backbone)[: -1 if tower.fast.prunes_last_layer else None]]
    _keep_attention_whole()
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        for tower in towers:
            _try(tower)
    except Exception as error:
        for layer in layers:
            layer._compiled_call_impl = None
        logger.warning("train.compile=true does not work here and is left out (%s)", str(error).strip().splitlines()[0])
        return False
    return True


def checkpoint_activations(towers: Sequence[Any]) -> None:
    """Towers keep the input of each layer instead of everything inside, and compute the rest again in backward; the same gradients.

    Raises:
        ConfigError: a backbone has no such mode.
    """
    for tower in towers:
        if not getattr(tower.backbone, "supports_gradient_checkpointing", False):
            raise ConfigError(f"train.gradient_checkpointing=true: {type(tower.backbone).__name__} has no such mode; set it to false")
        # transformers 5 renamed it on the way.
        renamed = getattr(tower.backbone, "activation_checkpointing_enable", None)
        (renamed or tower.backbone.gradient_checkpointing_enable)({"use_reentrant": False})


def _keep_attention_whole() -> None:
    """Its loops over buckets would be compiled anew for every batch."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, torch.compiler.disable(packed_attention))


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
