"""Files of metrics in the folder of a run: ``metrics.jsonl``, with those of all steps, and ``report.html``, the
page of their curves."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from pathlib import Path

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.evaluation.report import write_report
from dpr.formats.run_folders import metrics_lines, metrics_problems
from dpr.storage.durable import append_jsonl, durable_file
from dpr.training.command_settings import TrainCommand
from dpr.training.run import Callback, Run
from dpr.training.validations.protocol import Metrics

logger = get_logger(__name__)


class MetricsFile(Callback):
    """Callback that appends all logged and validation metrics to ``metrics.jsonl`` in the run's folder. On
    rank 0.

    A resumed run drops the lines of steps that it repeats, so every step is there once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, run: Run) -> None:
        if not run.ranks.is_main:
            return
        for problem in metrics_problems(self.path.parent) or []:
            logger.warning("%s %s; it is used as it is", self.path, problem)
        if self.path.exists():
            last = run.progress.step or -1
            try:
                with durable_file(self.path) as file:
                    file.writelines(
                        f"{line}\n" for line in metrics_lines(self.path) if _step_of(line) <= last
                    )
            except (OSError, InputError) as error:
                logger.warning(
                    "%s keeps the lines of steps that are repeated: %s",
                    self.path,
                    getattr(error, "strerror", None) or error,
                )
        if not run.progress.step and run.progress.start_metrics:
            self.on_log(run, run.progress.start_metrics)

    def on_log(self, run: Run, metrics: Metrics) -> None:
        if not run.ranks.is_main:
            return
        try:
            append_jsonl(self.path, {"step": run.progress.step, "epoch": run.epoch, **metrics})
        except OSError as error:  # no reason to lose a run
            logger.warning(
                "metrics of step %d are missing in %s: %s",
                run.progress.step,
                self.path,
                error.strerror or error,
            )

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        self.on_log(run, metrics)


def _step_of(line: str | None) -> float:
    """Returns the step of a line. A line cut short by a kill, or too long, counts as a future one, so it is
    dropped."""
    try:
        return float(json.loads(line or "")["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


REPORT_EVERY_S = 60.0


class ReportPage(Callback):
    """Callback that writes ``report.html`` in the run's folder at the end, and at checkpoints, at most once a
    minute, since its charts take seconds. On rank 0.

    If the page cannot be written, a warning is logged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written = time.monotonic()

    def on_save(self, run: Run, folder: Path) -> None:
        is_last = run.progress.step == run.last_step  # the end writes it
        if not is_last and time.monotonic() - self._written >= REPORT_EVERY_S:
            self.on_train_end(run)
            self._written = time.monotonic()

    def on_train_end(self, run: Run) -> None:
        if run.ranks.is_main:
            try:
                write_report(self.folder, defaults=asdict(TrainCommand()))
            except Exception as error:  # no reason to lose a run
                logger.warning("report.html is not written: %s", error)
