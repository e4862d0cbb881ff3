"""AdamW with the usual groups and averages of the weights, learning-rate schedules as pure functions of the
step, and optimizer state by parameter name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpr.core.errors import CheckpointError
from dpr.core.sharded import local_shard, placed_like
from dpr.models.biencoder import BiEncoder
from dpr.training.rows import RowAdamW
from dpr.training.settings import OptimizerSettings

_FRESH_STATE = "ignore_checkpoint_optimizer=true starts with fresh optimizer state"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning-rate factor by step: a linear warm-up, then linear, cosine (both down to 0) or constant.

    ``dpr`` is the original's linear one: 0 at the first update, 1 / (total - warm-up) at the last, and never
    below 1e-7.
    """

    kind: str = "linear"
    warmup_steps: int = 0

    def factor(self, step: int, total_steps: int) -> float:
        """Factor of update ``step`` (counted from 0) of ``total_steps``. A warm-up starts at 1 /
        warmup_steps, except that of ``dpr``."""
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
        return falling


class AveragingAdamW(RowAdamW):
    """``RowAdamW`` that, with ``decay`` above 0, keeps a mean of every weight over its updates: one counts
    ``decay`` times as much as the next. An update that is skipped does not count, and each row of a table
    that learns by rows has the mean over its own updates.

    The means are a field of its state, ``twin``, so they are sharded, stored and restored like the moments.
    """

    def __init__(self, groups: list[dict[str, Any]], *, decay: float = 0.0, **options: Any) -> None:
        super().__init__(groups, **options)
        self.decay = decay

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of the weights, then of their means."""
        if not self.decay:
            return super().step(closure)
        before = {
            parameter: state["step"].clone() for parameter, state in self.state.items() if state["step"].dim()
        }
        super().step(closure)
        share: Tensor | None = None
        for parameter, state in self.state.items():
            weights, counts = local_shard(parameter), state["step"]
            mean = local_shard(state.setdefault("twin", parameter.detach().clone()))
            if counts.dim():
                rows = (counts != before.get(parameter, 0)).nonzero()[:, 0]
                mean[rows] = mean[rows].lerp_(
                    weights[rows], self._share(counts[rows])[:, None].to(mean.dtype)
                )
            else:  # all others are updated together
                share = self._share(counts) if share is None else share
                mean.lerp_(weights, share.to(mean.dtype))

    def _share(self, counts: Tensor) -> Tensor:
        """What the last of so many updates counts of their mean, on the device."""
        skipped = getattr(self, "found_inf", None)
        share = (1 - self.decay) / (1 - self.decay ** counts.double().clamp(min=1))
        return share if skipped is None else share * (1 - skipped.double())

    @torch.no_grad()
    def swap(self) -> None:
        """Exchanges weights and means, if there are means."""
        for parameter, state in self.state.items():
            if "twin" in state:
                held = parameter.detach().clone()
                parameter.copy_(state["twin"])
                state["twin"].copy_(held)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """A block in which the model has the means. State that is restored in it is that of a model that had
        them too."""
        self.swap()
        try:
            yield
        finally:
            self.swap()
            for state in () if self.decay else self.state.values():
                state.pop("twin", None)


def make_optimizer(model: BiEncoder, settings: OptimizerSettings) -> AveragingAdamW:
    """AdamW over the trained parameters. Weight decay leaves out biases, normalisation weights and scalars
    (fewer than two axes)."""
    embeddings = {id(table) for table in model.token_embeddings()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            decay = settings.weight_decay if parameter.dim() > 1 else 0.0
            factor = settings.embedding_lr_factor if id(parameter) in embeddings else 1.0
            groups.setdefault((decay, factor), []).append(parameter)
    return AveragingAdamW(
        [
            {
                "params": parameters,
                "weight_decay": decay,
                "lr_factor": factor,
                "lr": settings.learning_rate * factor,
            }
            for (decay, factor), parameters in groups.items()
        ],
        lr=settings.learning_rate,
        eps=settings.adam_eps,
        betas=settings.betas(),
        fused=True,
        decay=settings.ema_decay,
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
    parameters, state = dict(model.named_parameters()), dict[str, Tensor]()
    for key, shape in shapes.items():
        field, _, name = key.partition("/")
        parameter = parameters.get(name)
        if parameter is None or shape != (torch.Size() if field == "step" else parameter.shape):
            raise CheckpointError(
                f"the optimizer state does not fit this model (first: {name})", hint=_FRESH_STATE
            )
        state[key] = (
            torch.zeros((), device=parameter.device)
            if field == "step"
            else torch.zeros_like(parameter, requires_grad=False)
        )
    return state


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
