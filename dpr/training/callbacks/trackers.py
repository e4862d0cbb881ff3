"""Programs that show the metrics of runs: TensorBoard and Weights & Biases, both optional packages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, first_line
from dpr.core.logs import get_logger
from dpr.core.machine import require
from dpr.training.run import Callback, Run
from dpr.training.validations.protocol import Metrics

logger = get_logger(__name__)


class Tracker(Callback):
    """Callback that sends all logged and validation metrics to another program, on rank 0. A finished run
    opens nothing there.

    If a new run cannot be opened there, a ``ConfigError`` is raised. If anything fails later, a warning is
    logged and the program gets no further metrics; the run continues. A subclass implements ``open``,
    ``send`` and ``close``. Checkpoints store ``id``, so that a resumed run continues the same run there.
    """

    setting = "callbacks"  # setting that switches it on
    id: str | None = None
    _is_open = False

    def open(self, run: Run) -> None:
        """Begins a run there, or continues the run ``id``."""
        raise NotImplementedError

    def send(self, metrics: Metrics, step: int) -> None:
        """Takes the metrics of a step; a resumed run may repeat steps."""
        raise NotImplementedError

    def close(self, *, failed: bool) -> None:
        """Ends the run there."""
        raise NotImplementedError

    def on_train_begin(self, run: Run) -> None:
        if not run.ranks.is_main or run.progress.step >= run.last_step:
            return
        is_new = self.id is None
        try:
            self.open(run)
        except Exception as error:
            name = type(self).__name__
            reason = first_line(error)
            if is_new:
                raise ConfigError(
                    f"{name} cannot be opened: {reason}; fix that, or leave out {self.setting}"
                ) from error
            logger.warning("%s gets no metrics of this resumed run: %s", name, reason)
            return
        self._is_open = True
        if not run.progress.step and run.progress.start_metrics:
            self.on_log(run, run.progress.start_metrics)

    def on_log(self, run: Run, metrics: Metrics) -> None:
        if self._is_open:
            try:
                self.send(metrics, run.progress.step)
            except Exception as error:
                self._is_open = False
                logger.warning(
                    "%s gets no more metrics after step %d: %s",
                    type(self).__name__,
                    run.progress.step,
                    error,
                )

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        self.on_log(run, metrics)

    def on_train_end(self, run: Run) -> None:
        self._end(failed=False)

    def on_exception(self, run: Run, error: BaseException) -> None:
        self._end(failed=True)

    def _end(self, *, failed: bool) -> None:
        if self._is_open:
            self._is_open = False
            try:
                self.close(failed=failed)
            except Exception as error:
                logger.warning("%s was not closed: %s", type(self).__name__, error)

    def state_dict(self) -> dict[str, Any]:
        return {"id": self.id} if self.id else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.id = state["id"]


class TensorBoard(Tracker):
    """Tracker that writes a TensorBoard event file. Needs the extra ``tb``.

    TensorBoard hides the metrics that a killed run wrote for steps that are repeated.
    """

    setting = "tracking.tensorboard=true"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._make_writer = require("torch.utils.tensorboard", extra="tb", purpose=self.setting).SummaryWriter

    def open(self, run: Run) -> None:
        resumed = {"purge_step": run.progress.step + 1} if run.progress.step else {}
        self._writer = self._make_writer(str(self.folder), **resumed)

    def send(self, metrics: Metrics, step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def on_save(self, run: Run, folder: Path) -> None:
        if self._is_open:
            self._writer.flush()

    def close(self, *, failed: bool) -> None:
        self._writer.close()


class WeightsAndBiases(Tracker):
    """Tracker that sends metrics to Weights & Biases. Needs the extra ``wandb``. Its environment variables
    apply: ``WANDB_PROJECT`` (default ``dpr``), and ``WANDB_MODE=offline``, which keeps metrics in
    ``<output_dir>/wandb``."""

    setting = "tracking.wandb=true"

    def __init__(self) -> None:
        self._wandb = require("wandb", extra="wandb", purpose=self.setting)

    def open(self, run: Run) -> None:
        os.environ.setdefault("WANDB_INIT_TIMEOUT", "20")  # seconds, if there is no answer
        is_offline = os.environ.get("WANDB_MODE") == "offline"
        run.output_dir.mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "dpr"),
            name=run.output_dir.name,
            dir=str(run.output_dir),
            id=self.id,
            resume="allow" if self.id and not is_offline else None,
            config=run.config,
        )
        self.id = self._run.id

    def send(self, metrics: Metrics, step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
