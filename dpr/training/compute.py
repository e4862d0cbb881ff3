"""What a run computes with: the arithmetic, the step, and the model as one of several ranks trains it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dpr.core.batch import TokenBatch
from dpr.core.compute_settings import autocast
from dpr.core.distributed import Ranks, copy_from_main
from dpr.core.logs import get_logger
from dpr.models.biencoder import BiEncoder, BiEncoderVectors
from dpr.models.trials import is_static
from dpr.training.sharding import row_tables

# Long enough for a model with windowed attention; longer sequences cost more per token.
TRIAL_LENGTH = 64


def trial_tokens(model: BiEncoder, length: int = 0) -> TokenBatch:
    """Two sequences of ``length`` tokens (0: a short one), on the model's device."""
    length = length or min(TRIAL_LENGTH, model.settings.sequence_length)
    # any word: not every tokenizer has a [SEP]
    tokens = torch.ones(2 * length, dtype=torch.int64, device=model.device)
    return TokenBatch(
        tokens,
        torch.full((2,), length, dtype=torch.int64),
        torch.zeros(2, dtype=torch.int64, device=model.device),
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A block in evaluation mode: it draws no random number and changes no running mean."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def total(vectors: BiEncoderVectors) -> Tensor:
    """A sum of all outputs of the model."""
    return vectors.questions.sum() + vectors.contexts.sum() + vectors.temperature.value


def freeze_unneeded(model: BiEncoder, *, precision: str = "fp32") -> None:
    """Freezes the parameters that no vector depends on, such as those of Longformer's global attention, and
    logs it.

    They get no gradient, which data-parallel training would wait for and a resumed optimizer would miss.
    """
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with evaluating(model), autocast(model.device, precision):
        tokens = trial_tokens(model)
        gradients = torch.autograd.grad(
            total(model(tokens, tokens)), list(learning.values()), allow_unused=True
        )
    unneeded = [name for name, gradient in zip(learning, gradients, strict=True) if gradient is None]
    for name in unneeded:
        learning[name].requires_grad_(False)
    if unneeded:
        logger.info(
            "%d parameters have no part in any vector and are not trained (first: %s)",
            len(unneeded),
            ", ".join(unneeded[:3]),
        )


def graph_bytes_per_token(model: BiEncoder, *, length: int = 0, precision: str = "fp32") -> float:
    """What autograd keeps for backward, per token of sequences of ``length``; 0 is the greatest, which costs
    most per token."""
    length = length or model.settings.sequence_length
    kept = dict[int, int]()
    was_training = model.training
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    tower = model.question_model if model.options.fix_ctx_encoder else model.ctx_model
    tokens = trial_tokens(model, length)
    if is_static(tower.backbone):  # its graph grows with the distinct tokens: all of them, at most
        distinct = torch.arange(2 * length, device=model.device) % int(tower.config.vocab_size)
        tokens = TokenBatch(distinct, tokens.lengths, tokens.position)
    model.train()
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        autocast(model.device, precision),
    ):
        vectors = tower(tokens)
    del vectors
    model.train(was_training)
    return sum(kept.values()) / (2 * length)


logger = get_logger(__name__)


def data_parallel(
    model: BiEncoder, ranks: Ranks, device: torch.device, *, precision: str = "fp32"
) -> nn.Module:
    """The model, wrapped so that gradients are averaged over ranks; with one rank, the model itself.

    So is a model with tables that learn by rows, which DDP would send whole: its steps average the gradients
    themselves.
    """
    if ranks.world_size == 1 or row_tables(model):
        copy_from_main(model.parameters())
        return model
    device_ids = [device.index] if device.type == "cuda" else None
    # Buffers (position numbers) are equal everywhere; torch 2.13 renamed the switch that leaves them alone.
    renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    leave_buffers: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    parallel = DistributedDataParallel(
        model, device_ids=device_ids, gradient_as_bucket_view=True, **leave_buffers
    )
    # DDP sums gradients in buckets and regroups them once: in the forward after its first backward, in the
    # order in which they were ready. Other buckets add the terms of 3 or more ranks in another order. A
    # resumed run would take its first step with the first grouping, where an uninterrupted run has the
    # second. So every start begins with the same backward, whose gradients are discarded.
    with evaluating(model), autocast(model.device, precision):
        tokens = trial_tokens(model)
        total(parallel(tokens, tokens)).backward()
    model.zero_grad(set_to_none=True)
    return parallel
