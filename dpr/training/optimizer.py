"""AdamW with the usual groups, learning-rate schedules as pure functions of the step, and optimizer state by parameter name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpr.core.errors import CheckpointError
from dpr.core.sharded import placed_like
from dpr.models.biencoder import BiEncoder
from dpr.training.rows import RowAdamW
from dpr.training.settings import OptimizerSettings

_FRESH_STATE = "ignore_checkpoint_optimizer=true starts with fresh optimizer state"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning-rate factor by step: a linear warm-up, then linear, cosine (both down to ``min_ratio``) or constant.

    ``dpr`` is the original's linear one: 0 at the first update, 1 / (total - warm-up) at the last, and never below 1e-7.
    """

    kind: str = "linear"
    warmup_steps: int = 0
    min_ratio: float = 0.0

    def factor(self, step: int, total_steps: int) -> float:
        """Factor of update ``step`` (counted from 0) of ``total_steps``. A warm-up starts at 1 / warmup_steps, except that of ``dpr``."""
        if self.kind == "dpr":
            if step < self.warmup_steps:
                return step / self.warmup_steps
            return max(1e-7, (total_steps - step) / max(1, total_steps - self.warmup_steps))
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.kind == "constant":
            return 1.0
        done = min(1.0, (step - self.warmup_steps) / max(1, total_steps - self.warmup_steps))
        falling = 1.0 - done if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.min_ratio + (1.0 - self.min_ratio) * falling


def make_optimizer(model: BiEncoder, settings: OptimizerSettings) -> RowAdamW:
    """AdamW over the trained parameters. Weight decay leaves out biases, normalisation weights and scalars (fewer than two axes)."""
    embeddings = {id(table) for table in model.token_embeddings()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            decay = settings.weight_decay if parameter.dim() > 1 else 0.0
            factor = settings.embedding_lr_factor if id(parameter) in embeddings else 1.0
            groups.setdefault((decay, factor), []).append(parameter)
    return RowAdamW(
        [
            {"params": parameters, "weight_decay": decay, "lr_factor": factor, "lr": settings.learning_rate * factor}
            for (decay, factor), parameters in groups.items()
        ],
        lr=settings.learning_rate,
        eps=settings.adam_eps,
        betas=settings.betas(),
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Sets the learning rate of the coming update; groups keep their factors."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["lr_factor"]


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Optimizer state as ``<field>/<parameter name>`` -> tensor, independent of the order of parameters."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for field, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{field}/{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return tensors


def stored_like(model: nn.Module, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Zeros to read ``optimizer_tensors`` of these shapes into, whole or in parts as their parameters are.

    Raises:
        CheckpointError: there is no such parameter, or it has another shape.
    """
    parameters, found = dict(model.named_parameters()), dict[str, Tensor]()
    for key, shape in shapes.items():
        field, _, name = key.partition("/")
        parameter = parameters.get(name)
        if parameter is None or shape != (torch.Size() if field == "step" else parameter.shape):
            raise CheckpointError(f"the optimizer state does not fit this model (first: {name})", hint=_FRESH_STATE)
        found[key] = torch.zeros((), device=parameter.device) if field == "step" else torch.zeros_like(parameter, requires_grad=False)
    return found


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restores what ``optimizer_tensors`` returned.

    Raises:
        CheckpointError: state is missing for a trained parameter, or is there for another one.
    """
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        field, _, name = key.partition("/")
        by_name.setdefault(name, {})[field] = tensor
    if tensors and by_name.keys() != parameters.keys():
        odd = sorted(by_name.keys() ^ parameters.keys())
        raise CheckpointError(
            f"the optimizer state does not fit the trained parameters (first: {', '.join(odd[:3])})",
            hint=_FRESH_STATE,
        )
    for name, state in by_name.items():
        parameter = parameters[name]
        optimizer.state[parameter] = {
            field: tensor.to(parameter.device, torch.float32)
            if field == "step"
            else placed_like(tensor, parameter).to(parameter.device, parameter.dtype)
            for field, tensor in state.items()
        }
