"""A model spread over the ranks (torch's FSDP2): each holds a part of every weight, of its gradient and of
the optimizer's state.

A layer's weights are joined on all ranks while it computes, forward and again backward, and its gradient is
summed as it is cut into parts. Layers and towers are the units: a tower reads the word table itself, and
gradient caching calls towers, so neither the backbone nor the bi-encoder could be one. Outside of forward and
backward every weight is in parts.

Each forward and each backward of a unit is a collective. So all ranks make equally many of both, in the same
order: a tower takes its tokens in one pack, and a rank that has fewer chunks or batches than another encodes
``filler_tokens`` in their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

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
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder, filler_tokens
from dpr.models.trials import layers_of

logger = get_logger(__name__)


def shard(model: BiEncoder, ranks: Ranks) -> None:
    """Spreads the weights of rank 0 over all ranks, in place; with one rank there is nothing to spread, and a
    warning says so.

    Raises:
        ConfigError: the model has tables that learn by rows, or adapters.
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
            # The outermost unit too: it would stay whole after a forward without a backward, and parameters
            # would be other objects.
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)
        tower.is_sharded = True
        tower.fast = replace(tower.fast, in_one_pack=True)
    if model.log_temperature is not None:
        # Of the kind of the others, so that one optimizer, one loss scale and one norm take all of them.
        model.log_temperature = nn.Parameter(
            distribute_tensor(model.log_temperature.data, mesh, [Replicate()], src_data_rank=None)
        )


def sharded_towers(model: nn.Module) -> list[Encoder]:
    """The towers whose weights are spread over ranks."""
    return [tower for tower in model.towers if tower.is_sharded] if isinstance(model, BiEncoder) else []


@contextmanager
def averaging(model: nn.Module, *, is_last: bool) -> Iterator[None]:
    """A block whose backward averages gradients over ranks with the last micro-batch of an update, and before
    that adds them up."""
    with model.no_sync() if isinstance(model, DistributedDataParallel) and not is_last else nullcontext():
        set_reduction(model, is_last)
        yield
        if is_last and sharded_towers(model):
            _average_temperature(model)


def set_reduction(model: nn.Module, is_on: bool) -> None:
    """Whether backward sums the gradients of sharded towers over ranks. Until then each rank holds them
    whole."""
    for tower in sharded_towers(model):
        tower.set_requires_gradient_sync(is_on)  # type: ignore[operator]


def average(model: BiEncoder, *, by_rows: Sequence[Tensor] = ()) -> None:
    """Replaces the gradients that backward has left on the ranks by their mean."""
    towers = sharded_towers(model)
    if not towers:
        average_gradients(model.parameters(), by_rows=by_rows)
        return
    # Only a backward sums over ranks: that of one text whose gradient is zero brings along what the chunks
    # have added up.
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
    """``torch.nn.utils.clip_grad_norm_`` that knows gradients by rows, which must be coalesced, and sharded ones;
    the norm, (), is a plain tensor, the same on all ranks."""
    gradients: list[Any] = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if any(map(is_sharded, gradients)):
        parts: dict[bool, list[Tensor]] = {True: [], False: []}
        for gradient in gradients:
            parts[gradient.placements[0].is_shard()].append(local_shard(gradient))
        of_parts, of_copies = (
            torch.nn.utils.get_total_norm(parts[kind]).to(gradients[0].device) for kind in (True, False)
        )
        norm = (sum_over_ranks(of_parts.square()) + of_copies.square()).sqrt()
        scaled = parts[True] + parts[False]
    elif any(gradient.is_sparse for gradient in gradients):
        scaled = [gradient.values() if gradient.is_sparse else gradient for gradient in gradients]
        norm = torch.nn.utils.get_total_norm(scaled)
    else:
        return torch.nn.utils.clip_grad_norm_(parameters, limit)
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient in scaled:
        gradient.mul_(factor)
    return norm


def row_tables(model: nn.Module) -> list[nn.Parameter]:
    """The tables of a model that learn by rows."""
    tables = [
        module.weight for module in model.modules() if isinstance(module, nn.Embedding) and module.sparse
    ]
    return [
        table for table in dict.fromkeys(tables) if isinstance(table, nn.Parameter) and table.requires_grad
    ]
