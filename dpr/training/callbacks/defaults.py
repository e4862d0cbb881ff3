"""The callbacks of every run, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpr.formats.run_folders import METRICS_LINES
from dpr.training.callbacks.base_comparison import BaseComparison
from dpr.training.callbacks.batch_metrics import GlobalBatchMetrics
from dpr.training.callbacks.early_stopping import EarlyStopping
from dpr.training.callbacks.log_lines import LogEvery, ProgressLine
from dpr.training.callbacks.metrics_file import MetricsFile
from dpr.training.callbacks.report_page import ReportPage
from dpr.training.callbacks.saving import ValidateAndSave
from dpr.training.run import Callback
from dpr.training.settings import TrainNode


def default_callbacks(
    settings: TrainNode, output_dir: Path, further: Sequence[Callback] = ()
) -> list[Callback]:
    """Returns the callbacks that log, validate and save, and those that settings switch on, with ``further``
    ones among them.

    The order matters: callbacks that add to the metrics come first, then those that collect and write them,
    and last the one that saves the state.
    """
    callbacks = [
        BaseComparison(),
        GlobalBatchMetrics(settings.log_batch_step),
        ReportPage(output_dir),
        *further,
    ]
    if patience := settings.early_stopping.patience:
        callbacks.append(EarlyStopping(patience=patience))
    return [
        *callbacks,
        LogEvery(settings.log_batch_step),
        ProgressLine(),
        MetricsFile(output_dir / METRICS_LINES),
        ValidateAndSave(settings),
    ]
