"""The page that a run can be watched on."""

from __future__ import annotations

from pathlib import Path

from dpr.core.logs import get_logger
from dpr.evaluation.report.write import write_report
from dpr.training.callbacks.protocol import Callback
from dpr.training.run import Run

logger = get_logger(__name__)


class ReportPage(Callback):
    """Keeps ``report.html`` in the run's folder up to date: at every checkpoint, so also at every validation, and at the end. On rank 0.

    A page that cannot be written is no reason to lose a run: it is a warning.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_save(self, run: Run, folder: Path) -> None:
        self._write(run)

    def on_train_end(self, run: Run) -> None:
        self._write(run)

    def _write(self, run: Run) -> None:
        if not run.ranks.is_main:
            return
        try:
            write_report(self.folder)
        except Exception as error:
            logger.warning("report.html is not written: %s", error)
