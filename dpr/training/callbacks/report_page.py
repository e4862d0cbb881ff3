"""``report.html``, the page of curves in the folder of a run."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from dpr.core.logs import get_logger
from dpr.evaluation.report import write_report
from dpr.training.command_settings import TrainCommand
from dpr.training.run import Callback, Run

logger = get_logger(__name__)

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
        if time.monotonic() - self._written >= REPORT_EVERY_S:
            self.on_train_end(run)
            self._written = time.monotonic()

    def on_train_end(self, run: Run) -> None:
        if run.ranks.is_main:
            try:
                write_report(self.folder, defaults=asdict(TrainCommand()))
            except Exception as error:  # no reason to lose a run
                logger.warning("report.html is not written: %s", error)
