"""Trackers: all logged and validation metrics for TensorBoard and Weights & Biases, on rank 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpr.core.lazy import require
from dpr.training.callbacks.protocol import Callback
from dpr.training.metrics import Metrics
from dpr.training.run import Run


class _Tracker(Callback):
    """``_open`` returns the ``_sink`` of the metrics. A finished run does not open it again."""

    _sink: Any = None

    def _open(self, run: Run) -> Any:
        raise NotImplementedError

    def on_train_begin(self, run: Run) -> None:
        if run.ranks.is_main and run.progress.step < run.last_step:
            self._sink = self._open(run)

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
