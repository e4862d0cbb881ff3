"""The callbacks of every run, put together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpr.core.errors import ConfigError
from dpr.formats.checkpoints import METRICS_LINES
from dpr.training.callbacks.log_every import LogEvery
from dpr.training.callbacks.metrics_file import MetricsFile
from dpr.training.callbacks.progress_line import ProgressLine
from dpr.training.callbacks.protocol import Callback
from dpr.training.callbacks.report_page import ReportPage
from dpr.training.callbacks.sanity_check import SanityCheck
from dpr.training.callbacks.spike_monitor import SpikeMonitor
from dpr.training.callbacks.validate_and_save import ValidateAndSave
from dpr.training.settings import TrainSettings


def with_usual_callbacks(given: Sequence[Callback], settings: TrainSettings, output_dir: Path) -> list[Callback]:
    """``given`` at their place among the usual ones, without those that ``train.leave_out`` names.

    The order matters: who adds to the metrics or looks at them, then who collects them and writes them down, last who saves what all know.

    Raises:
        ConfigError: ``train.leave_out`` names something else.
    """
    before = [SanityCheck(settings.sanity_validation), SpikeMonitor(), ReportPage(output_dir)]
    after = [LogEvery(settings.log_batch_step), ProgressLine(), MetricsFile(output_dir / METRICS_LINES), ValidateAndSave(settings)]
    names = [type(callback).__name__ for callback in (*before, *after)]
    left_out = settings.leave_out or []
    if unknown := [name for name in left_out if name not in names]:
        raise ConfigError(f"train.leave_out={unknown[0]} is not a usual callback; choose of {', '.join(names)}")
    kept = [[callback for callback in part if type(callback).__name__ not in left_out] for part in (before, after)]
    return [*kept[0], *given, *kept[1]]
