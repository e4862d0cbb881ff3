"""Tensors of which every rank holds a part (torch's DTensor): whole ones from parts, parts of whole ones.
Plain tensors pass unchanged.

DTensors are told by their methods: importing their class takes a second, which jobs on whole tensors would
spend for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dpr.core.distributed import current_ranks


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor, each rank with its part or, of a single number, each with its copy."""
    return hasattr(tensor, "full_tensor")


def local_shard(tensor: Any) -> Tensor:
    """What this rank holds of a tensor, in the same memory; gradients pass through."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def full_tensor(tensor: Any) -> Tensor:
    """The values of all ranks. All ranks must call it together if the tensor is sharded."""
    values: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return values


@torch.no_grad()
def placed_like(values: Tensor, tensor: Any) -> Tensor:
    """``values``, which every rank has whole, on the device of ``tensor`` and in as many parts; nothing
    travels."""
    if not is_sharded(tensor) or is_sharded(values):
        return values.to(tensor.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(values, tensor.device_mesh, tensor.placements, src_data_rank=None)


@torch.no_grad()
def full_on_main(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The whole tensors in rank 0's host memory, one after the other; nothing on other ranks. All ranks must
    call it together."""
    gathered = {}
    for name, tensor in tensors.items():
        values = full_tensor(tensor)
        if current_ranks().is_main:
            gathered[name] = values.detach().cpu()
    return gathered
