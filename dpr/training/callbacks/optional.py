"""Callbacks that settings switch on: early stopping, returning to the best weights, trackers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.lazy import require
from dpr.core.logs import get_logger
from dpr.formats import checkpoints
from dpr.training.callbacks.protocol import Callback
from dpr.training.metrics import Metrics
from dpr.training.run import Run
from dpr.training.validations.protocol import higher_is_better

logger = get_logger(__name__)


class EarlyStopping(Callback):
    """Stops after ``patience`` validations in a row that were not better than the best by more than ``min_delta``.

    ``metric`` is a metric of the validation; None is the one that the best checkpoint is chosen by. ``highest``: more is better. Counting
    starts over when validation changes to the average rank. Rerunning a stopped run does nothing.
    """

    def __init__(self, *, patience: int = 3, min_delta: float = 0.0, metric: str | None = None, highest: bool = False) -> None:
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
            logger.warning("early stopping: this validation has no %s, only %s; it does not count", name, ", ".join(metrics))
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


class _Tracker(Callback):
    """Sends all logged and validation metrics on rank 0 to the ``_sink`` that ``_open`` returns. A finished run opens none."""

    _sink: Any = None

    def _open(self, run: Run) -> Any:
        raise NotImplementedError

    def on_train_begin(self, run: Run) -> None:
        if run.ranks.is_main and run.progress.step < run.last_step:
            self._sink = self._open(run)
            if not run.progress.step and run.progress.start_metrics:
                self.on_log(run, run.progress.start_metrics)

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        self.on_log(run, metrics)


class TensorBoard(_Tracker):
    """Writes a TensorBoard event file. Needs the extra ``tb``.

    TensorBoard hides what a killed run wrote about steps that are repeated.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._make_writer = require("torch.utils.tensorboard", extra="tb", purpose="tracking.tensorboard=true").SummaryWriter

    def _open(self, run: Run) -> Any:
        resumed = {"purge_step": run.progress.step + 1} if run.progress.step else {}
        return self._make_writer(str(self.folder), **resumed)

    def on_log(self, run: Run, metrics: Metrics) -> None:
        if self._sink is not None:
            for name, value in metrics.items():
                self._sink.add_scalar(name, value, run.progress.step)

    def on_save(self, run: Run, folder: Path) -> None:
        if self._sink is not None:
            self._sink.flush()

    def on_train_end(self, run: Run) -> None:
        if self._sink is not None:
            self._sink.close()
            self._sink = None

    def on_exception(self, run: Run, error: BaseException) -> None:
        self.on_train_end(run)


class WeightsAndBiases(_Tracker):
    """Sends metrics to Weights & Biases; with ``mode="offline"`` they stay in ``<output_dir>/wandb``. Needs the extra ``wandb``.

    A resumed run continues the same run there.
    """

    def __init__(self, *, project: str = "dpr", run_name: str | None = None, mode: str = "online") -> None:
        self.project, self.run_name, self.mode = project, run_name, mode
        self._wandb = require("wandb", extra="wandb", purpose="tracking.wandb=true")
        self._id: str | None = None

    def _open(self, run: Run) -> Any:
        run.output_dir.mkdir(parents=True, exist_ok=True)
        opened = self._wandb.init(
            project=self.project,
            name=self.run_name or run.output_dir.name,
            dir=str(run.output_dir),
            mode=self.mode,
            id=self._id,
            resume="allow" if self._id and self.mode == "online" else None,
            config=run.config,
        )
        self._id = opened.id
        return opened

    def on_log(self, run: Run, metrics: Metrics) -> None:
        if self._sink is not None:
            self._sink.log(dict(metrics), step=run.progress.step)

    def on_train_end(self, run: Run) -> None:
        self._finish(0)

    def on_exception(self, run: Run, error: BaseException) -> None:
        self._finish(1)

    def _finish(self, exit_code: int) -> None:
        if self._sink is not None:
            self._sink.finish(exit_code=exit_code)
            self._sink = None

    def state_dict(self) -> dict[str, Any]:
        return {"id": self._id} if self._id else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._id = state["id"]
