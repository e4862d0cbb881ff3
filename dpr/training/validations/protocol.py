"""The contract of a validation: a model in, metrics out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dpr.core.errors import ConfigError
from dpr.models.towers import Towers

Metrics = dict[str, float]
"""Values by the names of metrics."""


class Validation(ABC):
    """Measurement of a model during training and in evaluation-only runs. ``train.validation`` adds
    user-defined ones (docs/extending.md).

    An implementation must promise:

    * All ranks call it together, and it returns the same metrics on every rank, whatever their number. Either
      it shares the work and sums over ranks, or every rank does all of it. If one rank raises alone, the
      others are left waiting. With ``train.sharding``, all ranks encode together, so all of them must call
      the encoder equally often, with no texts if need be.
    * The names start with ``eval/``, do not change from call to call, and no other validation of the run uses
      them. Values are numbers.
    * It leaves the model as it was: weights, gradients and training mode (``BiEncoder.encode_batch`` restores
      the mode). It may use torch's global generator, since the trainer seeds every step.
    * Equal models give equal metrics: a resumed run must choose the same best checkpoint.
    """

    judged_by: Sequence[str] = ()
    """Full names of the metrics by which the best checkpoint is compared with the base model."""
    guard: float | None = None
    """Margin by which the best checkpoint may be worse than the base model in the first metric of
    ``judged_by``; None = no limit."""
    values: Mapping[str, Sequence[float]] = MappingProxyType({})
    """Values of all questions in the last call, by metric; each metric is their mean. They are always in the
    same order; on rank 0."""

    @abstractmethod
    def __call__(self, model: Towers) -> Metrics:
        """Returns the metrics of ``model``, each by its full name, such as ``eval/nll_loss``. Any of them can
        be ``train.best_metric``."""

    def at_start(self, model: Towers) -> Metrics:
        """Returns the metrics before the first step, and those of baselines under names like
        ``eval/<set>/bm25/ndcg@10``."""
        return self(model)

    def num_texts(self, model: Towers) -> int:
        """Returns the number of texts that a call encodes, to estimate its cost beforehand; 0 if it is
        unknown. All ranks call it together."""
        return 0

    def is_due(self, epoch: int) -> bool:
        """Returns whether a validation in ``epoch`` (counted from 0) includes this one."""
        return True

    def content(self) -> Mapping[str, Any]:
        """Returns what its metrics depend on besides the model, as JSON: contents of its files, and settings.
        If it has changed, a resumed run chooses its best checkpoint from scratch."""
        return {}

    def lower_is_better(self, name: str) -> bool:
        """Returns whether lower values of a metric of this validation are better, as for a loss or a rank."""
        return False


def higher_is_better(validations: Sequence[Validation], name: str) -> bool:
    """Returns whether higher values of a metric of these validations are better."""
    return not any(validation.lower_is_better(name) for validation in validations)


def guard_limits(validations: Sequence[Validation], start: Metrics) -> Metrics:
    """Returns the value that the best checkpoint must reach, by guarded metric."""
    limits = {}
    for each in validations:
        for name in each.judged_by[:1]:
            if each.guard is not None and name in start:
                fall = -each.guard if each.lower_is_better(name) else each.guard
                limits[name] = start[name] - fall
    return limits


def broken_guard(validations: Sequence[Validation], limits: Metrics, metrics: Metrics) -> str | None:
    """Returns the first guarded metric that is beyond its limit, or was not measured."""
    for name, limit in limits.items():
        value = metrics.get(name, math.nan)
        is_kept = value >= limit if higher_is_better(validations, name) else value <= limit
        if not is_kept:
            return name
    return None


def run_validations(validations: Sequence[Validation], model: Towers, *, at_start: bool = False) -> Metrics:
    """Returns the metrics of all ``validations``; with ``at_start``, also those of baselines.

    Raises:
        ConfigError: two of them use one name, a name does not start with ``eval/``, or a value is not a
            number.
    """
    metrics: Metrics = {}
    for validation in validations:
        found = validation.at_start(model) if at_start else validation(model)
        kind = type(validation).__name__
        if not isinstance(found, dict):
            raise ConfigError(
                f"the validation {kind} returned a {type(found).__name__}; expected a dict of names and numbers"
            )
        for name, value in found.items():
            if not (isinstance(name, str) and name.startswith("eval/") and isinstance(value, int | float)):
                raise ConfigError(
                    f"the validation {kind} returned {value!r:.80} as {name!r}; expected numbers, by names"
                    " that start with eval/"
                )
            if name in metrics:
                raise ConfigError(f"two validations return the metric {name}; rename that of {kind}")
            metrics[name] = float(value)
    return metrics


def each_once(metrics: Metrics, *, by_set: bool = False) -> Metrics:
    """Returns the metrics without repeated figures. With a single set, its metrics (``eval/dev/nll_loss``)
    equal those of all sets (``eval/nll_loss``). Then only the latter are kept, or with ``by_set`` only the
    former."""
    names_of_all = {name: f"eval/{name.rpartition('/')[2]}" for name in metrics if name.count("/") > 1}
    twice = {name: short for name, short in names_of_all.items() if metrics[name] == metrics.get(short)}
    left_out = twice.values() if by_set else twice.keys()
    return {name: value for name, value in metrics.items() if name not in left_out}
