"""A forward of a few tokens that counts for nothing, by which is found out what a model does before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dpr.core.batch import TokenBatch
from dpr.core.logs import get_logger
from dpr.models.biencoder import BiEncoder, BiEncoderVectors

logger = get_logger(__name__)

# Long enough for a model that treats the neighbourhood of a token apart; attention makes longer ones cost more.
TRIAL_LENGTH = 64


def trial_tokens(model: BiEncoder, length: int = 0) -> TokenBatch:
    """Two sequences of ``length`` tokens (0: a short one), where the model is."""
    length = length or min(TRIAL_LENGTH, model.settings.sequence_length)
    tokens = torch.ones(2 * length, dtype=torch.int64, device=model.device)  # any word: not every tokenizer has a [SEP]
    return TokenBatch(tokens, torch.full((2,), length, dtype=torch.int64), torch.zeros(2, dtype=torch.int64, device=model.device))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A block in which dropout is off: it draws no random number and changes no running mean."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def total(vectors: BiEncoderVectors) -> Tensor:
    """A number that every output of the model has a part in."""
    return vectors.questions.sum() + vectors.contexts.sum() + vectors.temperature


def freeze_unneeded(model: BiEncoder) -> None:
    """Freezes the parameters that no vector depends on, such as those of Longformer's global attention, and says so.

    They would get no gradient, for which data-parallel training waits and which a resumed optimizer misses.
    """
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with evaluating(model):
        tokens = trial_tokens(model)
        gradients = torch.autograd.grad(total(model(tokens, tokens)), list(learning.values()), allow_unused=True)
    unneeded = [name for name, gradient in zip(learning, gradients, strict=True) if gradient is None]
    for name in unneeded:
        learning[name].requires_grad_(False)
    if unneeded:
        logger.info("%d parameters have no part in any vector and stay as they are (first: %s)", len(unneeded), ", ".join(unneeded[:3]))
