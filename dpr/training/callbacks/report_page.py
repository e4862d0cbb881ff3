"""The page that a run can be watched on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpr.core.logs import get_logger
from dpr.evaluation.report.write import write_report
from dpr.training.callbacks.protocol import Callback

if TYPE_CHECKING:
    from dpr.training.trainer import BiEncoderTrainer

logger = get_logger(__name__)


class ReportPage(Callback):
    """Keeps ``report.html`` in the run's folder up to date: at every checkpoint, so also at every validation, and at the end. On rank 0.

    A page that cannot be written is no reason to lose a run: it is a warning.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_save(self, trainer: BiEncoderTrainer, folder: Path) -> None:
        self._write(trainer)

    def on_train_end(self, trainer: BiEncoderTrainer) -> None:
        self._write(trainer)

    def _write(self, trainer: BiEncoderTrainer) -> None:
        if not trainer.ranks.is_main:
            return
        try:
            write_report(self.folder)
        except Exception as error:
            logger.warning("report.html is not written: %s", error)
