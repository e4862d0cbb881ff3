"""Figures as lines of JSON, which the report and other programs read."""

from __future__ import annotations

import json
import math
from pathlib import Path

from dpr.core.logs import get_logger
from dpr.formats.checkpoints import metrics_problems
from dpr.formats.durable import append_jsonl, durable_file
from dpr.training.callbacks.protocol import Callback
from dpr.training.metrics import Metrics
from dpr.training.run import Run

logger = get_logger(__name__)


class MetricsFile(Callback):
    """Appends every logged and validated figure to ``metrics.jsonl`` in the run's folder. On rank 0.

    A resumed run drops the lines of steps that will be done again, so that every step is there once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, run: Run) -> None:
        if not run.ranks.is_main:
            return
        for problem in metrics_problems(self.path.parent) or []:
            logger.warning("%s %s; it is used as it is", self.path, problem)
        if not self.path.exists():
            return
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").split("\n")  # the last may be torn within a letter
            with durable_file(self.path) as file:
                for line in lines:
                    if _step_of(line) <= run.progress.step:
                        file.write(line + "\n")
        except OSError as error:
            logger.warning("%s keeps the lines of steps that are done again: %s", self.path, error.strerror or error)

    def on_log(self, run: Run, metrics: Metrics) -> None:
        self._append(run, metrics)

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        self._append(run, metrics)

    def _append(self, run: Run, metrics: Metrics) -> None:
        if not run.ranks.is_main:
            return
        try:
            append_jsonl(self.path, {"step": run.progress.step, "epoch": run.epoch, **metrics})
        except OSError as error:  # no reason to lose a run
            logger.warning("metrics of step %d are missing in %s: %s", run.progress.step, self.path, error.strerror or error)


def _step_of(line: str) -> float:
    """The step of a line; a line cut short by a kill counts as being in the future, so it is dropped."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
