"""How much memory a step takes, found out by trying."""

from __future__ import annotations

import torch
from torch import Tensor

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.precision import autocast
from dpr.models.biencoder import BiEncoder
from dpr.training.trial import trial_tokens

logger = get_logger(__name__)

# Of the memory that is left for graphs; the rest is for what backward holds for a moment, for vectors and for the allocator's waste.
_SHARE_FOR_GRAPHS = 0.7


def fixed_bytes(model: BiEncoder) -> int:
    """Weights, and of those that train gradient and AdamW's two moments."""
    return sum(parameter.nbytes * (4 if parameter.requires_grad else 1) for parameter in model.parameters())


def graph_bytes_per_token(model: BiEncoder, *, length: int = 0, precision: str = "fp32") -> float:
    """What autograd keeps for backward, per token of sequences of ``length``; 0 is the greatest (attention makes it the most expensive)."""
    length, kept, was_training = length or model.settings.sequence_length, dict[int, int](), model.training
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    tower = model.question_model if model.options.fix_ctx_encoder else model.ctx_model
    model.train()
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        autocast(model.device, precision),
    ):
        vectors = tower(trial_tokens(model, length))
    del vectors
    model.train(was_training)
    return sum(kept.values()) / (2 * length)


def tokens_within(model: BiEncoder, budget_gb: float, *, precision: str = "fp32") -> int:
    """How many tokens' graphs a training process of ``budget_gb`` GiB may hold at once.

    Raises:
        ConfigError: not even one sequence of the greatest length fits.
    """
    fixed, per_token = fixed_bytes(model), graph_bytes_per_token(model, precision=precision)
    tokens = int(_SHARE_FOR_GRAPHS * (budget_gb * 2**30 - fixed) / per_token)
    length = model.settings.sequence_length
    if tokens < length:
        least = (fixed + length * per_token / _SHARE_FOR_GRAPHS) / 2**30
        raise ConfigError(
            f"train.memory_budget_gb={budget_gb:g} is too little: weights, gradients and optimizer take {fixed / 2**30:.2f}, a passage of "
            f"{length} tokens needs {least - fixed / 2**30:.2f} more; give at least {least:.2f}, or lower encoder.sequence_length"
        )
    logger.info(
        "train.memory_budget_gb=%g: %.2f GiB for weights, gradients and optimizer, %.0f kB per token, so graphs of %d tokens at a time",
        budget_gb,
        fixed / 2**30,
        per_token / 1000,
        tokens,
    )
    return tokens
