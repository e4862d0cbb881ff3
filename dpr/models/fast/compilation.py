"""Towers through ``torch.compile``, with our attention left as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from dpr.models.fast.attention import ATTENTION, packed_attention
from dpr.models.fast.last_layer import layers_of

logger = get_logger(__name__)


def compile_towers(model: BiEncoder) -> bool:
    """Compiles every layer of both towers, for any number of tokens, but one that computes a token a sequence; returns whether it worked.

    Tried on a few tokens with the whole of forward and backward. Where it fails (no C++ compiler, ...) the layers stay as they were, with
    one warning. Names of weights stay the same.
    """
    layers = [layer for tower in _towers(model) for layer in _layers(tower)]
    _keep_attention_whole()
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        for tower in _towers(model):
            _try(tower)
    except Exception as error:
        for layer in layers:
            layer._compiled_call_impl = None
        logger.warning("train.compile=true does not work here and is left out (%s)", str(error).strip().splitlines()[0])
        return False
    return True


def checkpoint_activations(model: BiEncoder) -> None:
    """Towers keep the input of each layer instead of everything inside, and compute the rest again in backward; the same gradients.

    Raises:
        ConfigError: a backbone has no such mode.
    """
    for tower in _towers(model):
        if not getattr(tower.backbone, "supports_gradient_checkpointing", False):
            raise ConfigError(f"train.gradient_checkpointing=true: {type(tower.backbone).__name__} has no such mode; set it to false")
        # transformers 5 renamed it on the way.
        renamed = getattr(tower.backbone, "activation_checkpointing_enable", None)
        (renamed or tower.backbone.gradient_checkpointing_enable)({"use_reentrant": False})


def _towers(model: BiEncoder) -> list[Encoder]:
    towers = [model.question_model] if model.ctx_model is model.question_model else [model.question_model, model.ctx_model]
    return [tower for tower in towers if any(parameter.requires_grad for parameter in tower.parameters())]


def _layers(tower: Encoder) -> Iterator[nn.Module]:
    layers = layers_of(tower.backbone)
    yield from layers[:-1] if tower.reads_tokens else layers


def _keep_attention_whole() -> None:
    """Its loops over buckets would be compiled anew for every batch."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, torch.compiler.disable(packed_attention))


def _try(tower: Encoder) -> None:
    training = tower.training
    tower.train()
    device: Any = next(tower.parameters()).device
    try:
        for lengths in ([7, 5], [9, 4, 3]):
            tower(TokenBatch.from_lists([[1] * length for length in lengths]).to(device)).sum().backward()
    finally:
        tower.train(training)
        tower.zero_grad(set_to_none=True)
