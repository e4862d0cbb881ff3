"""Early end of a run that no longer improves."""

from __future__ import annotations

import math
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.training.run import Callback, Run
from dpr.training.validations.protocol import Metrics

logger = get_logger(__name__)


class EarlyStopping(Callback):
    """Callback that stops a run after ``patience`` validations in a row without an improvement. The metric is
    the one that chooses the best checkpoint. It has improved if it is better than its best value by more than
    ``min_delta``.

    Counting starts over when that metric changes to the average rank. Rerunning a stopped run does nothing.
    """

    def __init__(self, *, patience: int = 3, min_delta: float = 0.0) -> None:
        self.patience = patience
        self.min_delta = min_delta
        self._watched: str | None = None
        self._best: float | None = None
        self._bad = 0
        if patience < 1:
            raise ConfigError(f"patience={patience} is out of range; it must be at least 1")

    def on_train_begin(self, run: Run) -> None:
        self._stop_if_due(run)

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        name, highest = run.best_by(metrics)
        if name not in metrics:
            logger.warning("early stopping: this validation has no %s, so it does not count", name)
            return
        if name != self._watched:
            self._watched = name
            self._best = None
            self._bad = 0
        self._bad += 1
        value = -metrics[name] if highest else metrics[name]
        if math.isfinite(value) and (self._best is None or value < self._best - self.min_delta):
            self._best = value
            self._bad = 0
        self._stop_if_due(run)

    def _stop_if_due(self, run: Run) -> None:
        if self._bad >= self.patience:
            run.request_stop(f"{self._watched} has not improved for {self._bad} validations")

    def state_dict(self) -> dict[str, Any]:
        is_stopped = self._bad >= self.patience
        return {"watched": self._watched, "best": self._best, "bad": self._bad, "stopped": is_stopped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._watched = state["watched"]
        self._best = state["best"]
        self._bad = int(state["bad"])
