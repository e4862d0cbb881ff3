"""The model as one of several ranks trains it: data-parallel, or sharded over the ranks (torch's FSDP2); and
trial forwards before training.

If sharded, each rank has a part of every weight, of its gradient and of the optimizer's state. A layer's
weights are joined on all ranks while it computes, in forward and again in backward. Its gradient is summed
over ranks and cut into parts at once. Layers and towers are the units. A tower reads the word table itself
and gradient caching calls towers, so neither the backbone nor the bi-encoder could be a unit. Outside of
forward and backward every weight is in parts.

Each forward and each backward of a unit is a collective, so all ranks run the same number of each, in the
same order. A tower takes its tokens in one pack. A rank with fewer chunks or batches than another encodes
``filler_tokens`` in their place.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dpr.core.batch import TokenBatch
from dpr.core.compute_settings import autocast
from dpr.core.distributed import (
    Ranks,
    average_gradients,
    copy_from_main,
    is_sharded,
    local_shard,
    sum_over_ranks,
)
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.models.encoder import Encoder, filler_tokens
from dpr.models.properties import is_static, layers_of
from dpr.models.towers import BiEncoderVectors, Towers

logger = get_logger(__name__)


def shard(model: Towers, ranks: Ranks) -> None:
    """Spreads the weights of rank 0 over all ranks, in place. With one rank it only warns that sharding has
    no effect.

    Raises:
        ConfigError: the model has tables that learn by rows, adapters, or towers that share a backbone.
    """
    if any(tower.adapter is not None for tower in model.towers):
        raise ConfigError(
            "train.sharding=fsdp2 and encoder.adapter=lora are mutually exclusive; leave one of them out"
        )
    if len({tower.backbone for tower in model.towers}) < len(model.towers):
        raise ConfigError("train.sharding=fsdp2 needs a tower, or two, with layers of its own; leave it out")
    if row_tables(model):
        raise ConfigError(
            "train.sharding=fsdp2: a table that learns by rows cannot be sharded; set train.sharding=none"
        )
    if ranks.world_size == 1:
        logger.warning("train.sharding=fsdp2 has no effect on one process; start several with torchrun")
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, distribute_tensor

    copy_from_main(model.parameters())
    mesh = init_device_mesh(model.device.type, (ranks.world_size,))
    for tower in model.towers:
        for unit in (*layers_of(tower.backbone), tower):
            # The outermost unit is resharded too. Otherwise it would stay whole after a forward without a
            # backward, and its parameters would be other objects.
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)
        tower.is_sharded = True
        tower.fast = replace(tower.fast, in_one_pack=True)
    if model.log_temperature is not None:
        # A DTensor like the other parameters, so that one optimizer, one loss scale and one norm take all of
        # them.
        model.log_temperature = nn.Parameter(
            distribute_tensor(model.log_temperature.data, mesh, [Replicate()], src_data_rank=None)
        )


def sharded_towers(model: nn.Module) -> list[Encoder]:
    """Returns the towers whose weights are spread over ranks."""
    return [tower for tower in model.towers if tower.is_sharded] if isinstance(model, Towers) else []


@contextmanager
def averaging(model: nn.Module, *, is_last: bool) -> Iterator[None]:
    """Opens a block for the backward of a micro-batch. Gradients add up on each rank; with the last
    micro-batch of an update, their sum is averaged over ranks."""
    with model.no_sync() if isinstance(model, DistributedDataParallel) and not is_last else nullcontext():
        set_reduction(model, is_last)
        yield
        if is_last and sharded_towers(model):
            _average_temperature(model)


def set_reduction(model: nn.Module, is_on: bool) -> None:
    """Sets whether backward sums the gradients of sharded towers over ranks. While it does not, each rank
    holds whole gradients."""
    for tower in sharded_towers(model):
        tower.set_requires_gradient_sync(is_on)  # type: ignore[operator]


def average(model: Towers, *, by_rows: Sequence[Tensor] = ()) -> None:
    """Replaces the gradients that backward has left on the ranks by their mean."""
    towers = sharded_towers(model)
    if not towers:
        average_gradients(model.parameters(), by_rows=by_rows)
        return
    # Only a backward sums over ranks. The backward of one text with a gradient of zero also sums the
    # gradients that the chunks have added up.
    set_reduction(model, True)
    for tower in model.trained_towers():
        vectors = tower(filler_tokens(model.device))
        vectors.backward(torch.zeros_like(vectors))
    _average_temperature(model)


def _average_temperature(model: nn.Module) -> None:
    temperature: Any = model.log_temperature
    if temperature is not None and temperature.grad is not None:
        gradient = local_shard(temperature.grad)
        gradient.copy_(sum_over_ranks(gradient) / temperature.device_mesh.size())


def clip_gradients(parameters: Sequence[Tensor], limit: float) -> Tensor:
    """Clips gradients like ``torch.nn.utils.clip_grad_norm_``, also gradients by rows, which must be
    coalesced, and sharded ones. Returns the norm, (), a plain tensor that is the same on all ranks."""
    gradients: list[Any] = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if any(map(is_sharded, gradients)):
        parts = [local_shard(each) for each in gradients if each.placements[0].is_shard()]
        copies = [local_shard(each) for each in gradients if not each.placements[0].is_shard()]
        of_parts, of_copies = (
            torch.nn.utils.get_total_norm(kind).to(gradients[0].device) for kind in (parts, copies)
        )
        norm = (sum_over_ranks(of_parts.square()) + of_copies.square()).sqrt()
        scaled = parts + copies
    elif any(gradient.is_sparse for gradient in gradients):
        scaled = [gradient.values() if gradient.is_sparse else gradient for gradient in gradients]
        norm = torch.nn.utils.get_total_norm(scaled)
    else:
        return torch.nn.utils.clip_grad_norm_(parameters, limit)
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient in scaled:
        gradient.mul_(factor)
    return norm


def row_tables(model: nn.Module) -> list[Tensor]:
    """Returns the tables of a model that learn by rows."""
    tables = (
        module.weight for module in model.modules() if isinstance(module, nn.Embedding) and module.sparse
    )
    return [table for table in dict.fromkeys(tables) if table.requires_grad]


# Long enough for a model with windowed attention; longer sequences cost more per token.
TRIAL_LENGTH = 64


def trial_tokens(model: Towers, length: int = 0) -> TokenBatch:
    """Returns two sequences of ``length`` tokens (0: a short one), on the model's device."""
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
    """Opens a block in evaluation mode, which draws no random number and changes no running mean."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def total(vectors: BiEncoderVectors) -> Tensor:
    """Returns the sum of all outputs of the model."""
    return vectors.questions.sum() + vectors.contexts.sum() + vectors.temperature.value


def freeze_unneeded(model: Towers, *, precision: str = "fp32") -> None:
    """Freezes the parameters that no vector depends on, such as those of Longformer's global attention, and
    logs it.

    They get no gradient. Data-parallel training would wait for it, and a resumed optimizer would miss it.
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


def graph_bytes_per_token(model: Towers, *, length: int = 0, precision: str = "fp32") -> float:
    """Returns the bytes that autograd keeps for backward, per token of sequences of ``length``. 0 stands for
    the greatest length, which costs most per token."""
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
    if is_static(tower.backbone):  # its graph grows with the distinct tokens
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


def data_parallel(model: Towers, ranks: Ranks, device: torch.device, *, precision: str = "fp32") -> nn.Module:
    """Returns the model wrapped so that gradients are averaged over ranks; with one rank, the model itself.

    A model with tables that learn by rows is not wrapped either, since DDP would send whole tables. Its steps
    average the gradients themselves.
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
    # DDP sums gradients in buckets. It regroups them once, in the forward after its first backward, in the
    # order in which they were ready. Other buckets add the terms of 3 or more ranks in another order. A
    # resumed run would take its first step with the first grouping, where an uninterrupted run has the
    # second. So every start begins with the same backward, whose gradients are discarded.
    with evaluating(model), autocast(model.device, precision):
        tokens = trial_tokens(model)
        total(parallel(tokens, tokens)).backward()
    model.zero_grad(set_to_none=True)
    return parallel
