"""AdamW with moving averages of the weights, learning-rate schedules as pure functions of the step, and
optimizer state by parameter name.

A table of words can learn by rows: the cost of a step depends on the rows that were read, not on the size of
the vocabulary. The gradient of such a table (``nn.Embedding`` with ``sparse``) is a sparse tensor of these
rows. Rows are joined over ranks and summed once per update, and the update changes these rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpr.core.distributed import local_shard, placed_like
from dpr.core.errors import CheckpointError
from dpr.models.towers import Towers
from dpr.training.settings import OptimizerSettings

EMA = "twin"
"""Name of the EMA copies in the optimizer state of checkpoints."""


def learning_rate_factor(kind: str, step: int, *, total_steps: int, warmup_steps: int = 0) -> float:
    """Returns the learning-rate factor of update ``step``, counted from 0: a linear warm-up, which starts at
    1 / warmup_steps, then linear or cosine (both down to 0), or constant.

    ``dpr`` is the original's linear schedule: 0 at the first update, 1 / (total - warm-up) at the last, and
    never below 1e-7.
    """
    falling_steps = max(1, total_steps - warmup_steps)
    if kind == "dpr":
        if step < warmup_steps:
            return step / warmup_steps
        return max(1e-7, (total_steps - step) / falling_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if kind == "constant":
        return 1.0
    done = min(1.0, (step - warmup_steps) / falling_steps)
    return 1.0 - done if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))


# Numbers of a table per pass of an update. They stay in the cache of a CPU, and torch does not distribute
# them over threads. A pass is over before threads have met. If other processes use the cores, for example the
# loader's workers, threads would wait for each other in each pass.
_NUMBERS_AT_ONCE = (1 << 15) - 1


class RowAdamW(torch.optim.AdamW):
    """AdamW with a separate AdamW for each row of tables whose gradient is by rows. A row's AdamW counts only
    the steps that have a gradient for the row.

    So a row that a step does not read keeps its weights and its moments, and its bias correction counts its
    own steps. A row whose gradient is zero throughout counts as not read: whether a row is read with weight
    zero depends on how the global batch is divided among ranks.

    With ``decay`` above 0 it keeps an exponential moving average (EMA) of every weight over its updates: each
    update weighs ``decay`` times as much as the next. A skipped update does not count. Each row of a table
    that learns by rows has the average over its own updates. The EMA copy is a field of the state, so it is
    sharded, stored and restored like the moments.
    """

    def __init__(self, groups: Any, *, decay: float = 0.0, **options: Any) -> None:
        super().__init__(groups, **options)
        self.decay = decay

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Updates the weights, then their averages. If a ``FiniteGuard`` or a gradient scaler has set
        ``found_inf``, (), to 1, everything stays as it was."""
        before = {
            parameter: state["step"].clone()
            for parameter, state in self.state.items()
            if self.decay and state["step"].dim()
        }
        by_rows = [
            (group, parameter, parameter.grad)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and parameter.grad.is_sparse
        ]
        for _, parameter, _ in by_rows:
            parameter.grad = None
        super().step(closure)
        for group, parameter, gradient in by_rows:
            parameter.grad = gradient
            self._update_rows(group, parameter, gradient.coalesce())
        if self.decay:
            self._average(before)

    def _update_rows(self, group: dict[str, Any], table: Tensor, gradient: Tensor) -> None:
        state = self.state[table]
        if not state:
            state["step"] = torch.zeros(len(table), dtype=torch.float32, device=table.device)
            state["exp_avg"] = torch.zeros_like(table)
            state["exp_avg_sq"] = torch.zeros_like(table)
        skipped = getattr(self, "found_inf", None)
        if skipped is not None and bool(skipped):
            return
        rows = gradient.indices()[0]
        values = gradient.values()
        is_read = values[:, 0] != 0
        if not bool(is_read.all()):  # rarely: one number shows it for nearly all rows
            is_read = values.abs().amax(1) != 0
            rows = rows[is_read]
            values = values[is_read]
        tensors = table, state["exp_avg"], state["exp_avg_sq"], state["step"]
        first, second = group["betas"]
        rate = group["lr"]
        size = max(1, _NUMBERS_AT_ONCE // table[0].numel() if table.device.type == "cpu" else len(rows))
        for part, numbers in zip(rows.split(size), values.split(size), strict=True):
            weights, mean, square, step = (tensor.index_select(0, part) for tensor in tensors)
            step = step + 1
            mean.lerp_(numbers, 1 - first)
            square.mul_(second).addcmul_(numbers, numbers, value=1 - second)
            age = step.double()[:, None]
            # AdamW's m / c1 / (sqrt(v / c2) + eps), with the factors of a row taken out: sqrt(c2) / c1 * m /
            # (sqrt(v) + eps sqrt(c2)).
            root = (1 - second**age).sqrt()
            change = square.sqrt().add_((group["eps"] * root).to(weights.dtype))
            torch.div(mean, change, out=change)
            if group["weight_decay"]:
                weights.mul_(1 - rate * group["weight_decay"])
            weights.addcmul_(change, (rate * root / (1 - first**age)).to(weights.dtype), value=-1)
            for tensor, changed in zip(tensors, (weights, mean, square, step), strict=True):
                tensor.index_copy_(0, part, changed)

    def _average(self, before: dict[Tensor, Tensor]) -> None:
        """Updates the averages; ``before`` has the steps of table rows before this update."""
        share: Tensor | None = None
        for parameter, state in self.state.items():
            weights = local_shard(parameter)
            counts = state["step"]
            mean = local_shard(state.setdefault(EMA, parameter.detach().clone()))
            if counts.dim():
                rows = (counts != before.get(parameter, 0)).nonzero()[:, 0]
                share_of_row = self._share(counts[rows])[:, None].to(mean.dtype)
                mean[rows] = mean[rows].lerp_(weights[rows], share_of_row)
            else:  # all others are updated together
                if share is None:
                    share = self._share(counts)
                mean.lerp_(weights, share.to(mean.dtype))

    def _share(self, counts: Tensor) -> Tensor:
        """Returns the weight of the latest of ``counts`` updates in the average, on the device."""
        skipped = getattr(self, "found_inf", None)
        share = (1 - self.decay) / (1 - self.decay ** counts.double().clamp(min=1))
        return share if skipped is None else share * (1 - skipped.double())

    @torch.no_grad()
    def swap(self) -> None:
        """Exchanges the weights and the EMA copy, if there is one."""
        for parameter, state in self.state.items():
            if EMA in state:
                own = parameter.detach().clone()
                parameter.copy_(state[EMA])
                state[EMA].copy_(own)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Opens a block in which the model has the averaged weights. State restored inside it must be that of
        a model that had them too."""
        self.swap()
        try:
            yield
        finally:
            self.swap()
            if not self.decay:
                for state in self.state.values():
                    state.pop(EMA, None)


def make_optimizer(model: Towers, settings: OptimizerSettings) -> RowAdamW:
    """Returns AdamW over the trained parameters. Weight decay leaves out biases, normalisation weights and
    scalars (fewer than two axes)."""
    embeddings = {id(table) for table in model.token_embeddings()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            decay = settings.weight_decay if parameter.dim() > 1 else 0.0
            factor = settings.embedding_lr_factor if id(parameter) in embeddings else 1.0
            groups.setdefault((decay, factor), []).append(parameter)
    return RowAdamW(
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
    """Returns the optimizer state as ``<field>/<parameter name>`` -> tensor, independent of the order of
    parameters."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for field, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{field}/{name}"] = value
    return tensors


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restores the state returned by ``optimizer_tensors``.

    Raises:
        CheckpointError: a trained parameter has no state, or another parameter has one.
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
            hint="model_file=<checkpoint> with another output_dir starts with fresh optimizer state",
        )
    for name, state in by_name.items():
        parameter = parameters[name]
        optimizer.state[parameter] = {
            field: tensor.to(parameter.device, torch.float32)
            if field == "step"
            else placed_like(tensor, parameter).to(parameter.device, parameter.dtype)
            for field, tensor in state.items()
        }
