"""What a person sees of a run while it goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dpr.core.logs import get_logger
from dpr.training.callbacks.protocol import Callback
from dpr.training.metrics import Metrics
from dpr.training.run import Run

logger = get_logger(__name__)


class ProgressLine(Callback):
    """A progress bar on a terminal, plain lines elsewhere. On rank 0."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def on_train_begin(self, run: Run) -> None:
        if run.ranks.is_main and sys.stderr.isatty():
            self._bar = tqdm(total=run.last_step, initial=run.progress.step, unit="step", dynamic_ncols=True)

    def on_step_end(self, run: Run) -> None:
        if self._bar is not None:
            self._bar.update()

    def on_log(self, run: Run, metrics: Metrics) -> None:
        text = (
            f"loss {metrics['train/loss']:.4f}  acc {metrics['train/in_batch_acc']:.3f}  lr {metrics['optim/lr']:.2e}  "
            f"grad {metrics['optim/grad_norm']:.2f}  {metrics['perf/questions_per_s']:.0f} questions/s  "
            f"{metrics['perf/tokens_per_s']:.0f} tokens/s  padding {metrics['perf/padding_share']:.0%}  "
            f"peak share {metrics['perf/mfu']:.0%}  memory {metrics['perf/mem_gb']:.1f} GiB"
        )
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        elif run.ranks.is_main:
            left = duration(metrics["perf/eta_s"])
            logger.info("epoch %d step %d/%d  %s  left %s", run.epoch, run.progress.step, run.last_step, text, left)

    def on_validate_end(self, run: Run, metrics: Metrics) -> None:
        logger.info("step %d  %s", run.progress.step, "  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))

    def on_save(self, run: Run, folder: Path) -> None:
        logger.info("saved %s", folder)

    def on_train_end(self, run: Run) -> None:
        self._close()

    def on_exception(self, run: Run, error: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def duration(seconds: float) -> str:
    """``2h05`` or ``3m07s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02d}" if minutes >= 60 else f"{minutes}m{rest:02d}s"
