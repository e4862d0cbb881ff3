"""Callbacks that settings switch on: early stopping, returning to the best weights."""

from __future__ import annotations

import math
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.formats import checkpoints
from dpr.training.callbacks.protocol import Callback
from dpr.training.metrics import Metrics
from dpr.training.run import Run
from dpr.training.validations.protocol import higher_is_better

logger = get_logger(__name__)


class EarlyStopping(Callback):
    """Stops after ``patience`` validations in a row that were not better than the best by more than
    ``min_delta``.

    ``metric`` is a metric of the validation; None is the one that the best checkpoint is chosen by.
    ``highest``: more is better. Counting starts over when validation changes to the average rank. Rerunning a
    stopped run does nothing.
    """

    def __init__(
        self, *, patience: int = 3, min_delta: float = 0.0, metric: str | None = None, highest: bool = False
    ) -> None:
        self.patience, self.min_delta, self.metric, self.highest = patience, min_delta, metric, highest
        self._watched: str | None = None
        self._best: float | None = None
        self._bad = 0
        if patience < 1:
            raise ConfigError(f"patience={patience} is out of range; it must be at least 1")

    def on_train_begin(self, run: Run) -> None:
        self._stop_if_due(run)

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        name, highest = run.best_by(metrics)
        if self.metric:
            name, highest = self.metric, self.highest or higher_is_better(run.validations, self.metric)
        if name not in metrics:
            logger.warning(
                "early stopping: this validation has no %s, only %s; it does not count",
                name,
                ", ".join(metrics),
            )
            return
        if name != self._watched:
            self._watched, self._best, self._bad = name, None, 0
        value = -metrics[name] if highest else metrics[name]
        if math.isfinite(value) and (self._best is None or value < self._best - self.min_delta):
            self._best, self._bad = value, 0
        else:
            self._bad += 1
        self._stop_if_due(run)

    def _stop_if_due(self, run: Run) -> None:
        if self._bad >= self.patience:
            run.request_stop(f"{self._watched} has not improved for {self._bad} validations")

    def state_dict(self) -> dict[str, Any]:
        return {"watched": self._watched, "best": self._best, "bad": self._bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._watched, self._best, self._bad = state["watched"], state["best"], int(state["bad"])


class LoadBest(Callback):
    """At the end of training, loads the weights of the best checkpoint into the model."""

    def on_train_end(self, run: Run) -> None:
        if run.progress.best_checkpoint is not None:
            folder = run.output_dir / run.progress.best_checkpoint
            run.model.load_weights(checkpoints.read_tensors(folder, checkpoints.MODEL_FILE), source=folder)
            logger.info("the model is now that of %s", folder)
